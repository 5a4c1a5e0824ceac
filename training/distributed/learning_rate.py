"""Learning rates that change with the epoch: Horovod's schedule and warm-up callbacks on Keras 3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from ...errors import InvalidArgumentError
from ..keras_internals import given_learning_rate
from ..rank.process_context import log_to_driver
from .membership import rank, size


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Multiplies a learning rate by a factor of the epoch.

    Args:
        initial_lr: The learning rate to multiply.
        multiplier: A function of the epoch (with a fraction unless `staircase`) that gives the factor. A number decays
            the rate exponentially, as in Horovod 0.28.1: the factor is `multiplier ** (epoch - start_epoch)`.
        start_epoch: First epoch with an effect.
        end_epoch: First epoch without an effect again; None for all.
        staircase: Change once an epoch, not each step.
        momentum_correction: For SGD and RMSprop with momentum: when the rate changes, scale the accumulated updates by
            the same ratio, as if they had been accumulated at the new rate (Goyal et al. 2017, section 3,
            arXiv:1706.02677).
        steps_per_epoch: Steps of an epoch; needed without `staircase` if Keras does not know them.

    Raises:
        InvalidArgumentError: If a number breaks its rule; when training begins, also if the steps of an epoch are
            unknown or the optimizer has its own schedule.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None or not initial_lr > 0:
            raise InvalidArgumentError(f"initial_lr={initial_lr!r}: must be above 0")
        self.initial_lr = initial_lr
        self.multiplier: Callable[[float], float] = (
            multiplier if callable(multiplier) else lambda epoch: float(multiplier ** (epoch - start_epoch))
        )
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self._epoch = 0

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Reads the number of steps of an epoch."""
        self.steps_per_epoch = self.steps_per_epoch or (self.params or {}).get("steps")
        if not self.staircase and not self.steps_per_epoch:
            raise InvalidArgumentError(
                "steps_per_epoch is not known to Keras; pass it to the callback, or use staircase=True"
            )
        schedule = given_learning_rate(_innermost(self.model.optimizer))
        if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
            raise InvalidArgumentError(
                f"the optimizer's learning rate follows {type(schedule).__name__}, which no callback can change; "
                f"give the optimizer a number, or leave {type(self).__name__} out"
            )

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Sets the epoch's learning rate."""
        self._epoch = epoch
        if self.staircase:
            self._adjust(epoch)

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Sets the step's learning rate."""
        if not self.staircase:
            self._adjust(self._epoch + batch / (self.steps_per_epoch or 1))

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Adds the learning rate to the logs, as Horovod's does."""
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)

    def _adjust(self, epoch: float) -> None:
        if self._epoch < self.start_epoch or (self.end_epoch is not None and self._epoch >= self.end_epoch):
            return
        optimizer = self.model.optimizer
        old, new = float(optimizer.learning_rate), self.initial_lr * self.multiplier(epoch)
        optimizer.learning_rate = new
        if self.momentum_correction and old > 0 and new != old:
            _scale_velocities(_innermost(optimizer), new / old)


def _innermost(optimizer: Any) -> Any:
    return getattr(optimizer, "inner_optimizer", optimizer)


def _scale_velocities(optimizer: Any, ratio: float) -> None:
    """Scales the accumulated updates of SGD or RMSprop with momentum, which contain the learning rate as a factor.

    Horovod multiplies the momentum itself for one step, which gives the same update of SGD and RMSprop; Keras 3 has
    that number compiled into the step. With Nesterov's momentum Horovod multiplies the look-ahead too, by a ratio that
    the new updates already contain; here only earlier updates are scaled. Other optimizers with a momentum, such as
    Muon, accumulate gradients, which do not contain the learning rate.
    """
    if not isinstance(optimizer, (keras.optimizers.SGD, keras.optimizers.RMSprop)):
        return
    if not optimizer.momentum or not optimizer.built:
        return
    for velocity in getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", []):
        velocity.assign(velocity * ratio)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate step by step from `initial_lr / size` to `initial_lr`.

    Source: Goyal et al. 2017, Accurate, Large Minibatch SGD (arXiv:1706.02677).

    Args:
        initial_lr: The learning rate after warm-up, usually scaled by the number of ranks.
        warmup_epochs: Epochs that the rise takes.
        momentum_correction: As in `LearningRateScheduleCallback`.
        steps_per_epoch: As in `LearningRateScheduleCallback`.
        verbose: 1 reports the end of warm-up.

    Raises:
        InvalidArgumentError: As in `LearningRateScheduleCallback`.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            # A step may begin within the warm-up and end after it.
            at = min(epoch + 1.0 / (self.steps_per_epoch or 1), warmup_epochs)
            return 1.0 / size() * (at * (size() - 1) / warmup_epochs + 1)

        if not warmup_epochs > 0:
            raise InvalidArgumentError(f"warmup_epochs={warmup_epochs!r}: must be above 0")
        super().__init__(initial_lr, multiplier, 0, None, False, momentum_correction, steps_per_epoch)
        self.warmup_epochs = warmup_epochs
        self.verbose = verbose

    def _adjust(self, epoch: float) -> None:
        if epoch < self.warmup_epochs:
            super()._adjust(epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Reports the end of warm-up."""
        super().on_epoch_end(epoch, logs)
        if self.verbose > 0 and epoch < self.warmup_epochs <= epoch + 1 and rank() == 0:
            log_to_driver(f"warm-up is over: learning rate {float(self.model.optimizer.learning_rate):g}")
