"""Keras 3 callbacks for several ranks, under Horovod's names, and a callback that reports to the driver."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from ...extras import missing_dependency

try:
    import keras
except ModuleNotFoundError as error:
    raise missing_dependency(error, __name__) or error from None

from ...errors import InvalidArgumentError, NotSupportedError
from ..keras_internals import given_learning_rate
from ..rank.process_context import log_to_driver
from .collectives import broadcast_variables
from .membership import rank, size
from .objects import allgather_object
from .optimizer import is_distributed

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "LogCallback",
    "MetricAverageCallback",
]


class _WorldCallback(keras.callbacks.Callback):
    """Base of the callbacks that communicate with other ranks."""

    def set_model(self, model: Any) -> None:
        """Takes the model before its training function is made."""
        super().set_model(model)
        if size() == 1 or not getattr(model, "compiled", False):
            return
        inner = getattr(model.optimizer, "inner_optimizer", None)
        if inner is not None and is_distributed(inner) and not is_distributed(model.optimizer):
            raise InvalidArgumentError(
                "the model's dtype policy wrapped the distributed optimizer in a LossScaleOptimizer, so ranks "
                "could skip different steps; "
                "pass hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer)) to compile()"
            )
        if model.jit_compile:
            # Horovod's operations have no XLA kernels; on GPUs Keras compiles with XLA by default.
            model.jit_compile = False


class BroadcastGlobalVariablesCallback(_WorldCallback):
    """Broadcasts the weights and the optimizer's state of one rank to all ranks before the first step.

    Args:
        root_rank: The rank whose values are broadcast.
        device: Horovod's option; only its default is supported.
        local_variables: The same.
    """

    def __init__(self, root_rank: int = 0, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        _refuse(device=device, local_variables=local_variables)
        self.root_rank = root_rank
        self._done = False

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Broadcasts, if the model is built."""
        self._done = False
        self._broadcast()

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Broadcasts after the first step, if the model was built by it."""
        if not self._done:
            self._broadcast()

    def _broadcast(self) -> None:
        if not self.model.built:
            return
        self._done = True
        if size() == 1:
            return
        optimizer = self.model.optimizer
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        # Weights alone: with the states of the seed generators every rank would draw the same noise.
        variables = {id(variable): variable for variable in [*self.model.weights, *optimizer.variables]}
        broadcast_variables(list(variables.values()), self.root_rank)


class MetricAverageCallback(_WorldCallback):
    """Averages the metrics of each epoch over all ranks, by the rows that each rank saw.

    Put it before callbacks that decide by metrics (EarlyStopping, ModelCheckpoint, ReduceLROnPlateau), so that all
    ranks decide alike. A metric that only some ranks have is averaged over those, and all ranks get it.

    Args:
        device: Horovod's option; only its default is supported.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        _refuse(device=device)
        self._training_counts: dict[str, float] = {}

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Resets the counts."""
        self._training_counts = {}

    def on_test_begin(self, logs: dict[str, float] | None = None) -> None:
        """Keeps the training metrics' counts: validation uses the same metric objects."""
        if not self._training_counts:
            self._training_counts = self._counts()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Replaces the values in `logs` by their averages."""
        if logs is None or size() == 1:
            return
        now = self._counts()
        training = self._training_counts or now
        mine = {name: (float(value), _rows(name, training, now)) for name, value in logs.items()}
        gathered = allgather_object(mine, name="lakelens.metrics")
        for name in sorted({name for metrics in gathered for name in metrics}):
            pairs = [metrics[name] for metrics in gathered if name in metrics]
            total = sum(count for _, count in pairs)
            logs[name] = sum(value * count for value, count in pairs) / total if total > 0 else pairs[0][0]

    def _counts(self) -> dict[str, float]:
        """The total weight of each metric since its last reset."""
        flat = [inner for metric in self.model.metrics for inner in getattr(metric, "metrics", [metric])]
        return {metric.name: float(metric.count) for metric in flat if hasattr(metric, "count")}


def _rows(name: str, training: dict[str, float], validation: dict[str, float]) -> float:
    """The number of rows behind a logged value; a metric without a count has that of the loss."""
    counts, plain = (validation, name[len("val_") :]) if name.startswith("val_") else (training, name)
    return counts.get(plain, counts.get("loss", 1.0))


def _refuse(**options: Any) -> None:
    for name, value in options.items():
        if value:
            raise NotSupportedError(f"{name}={value!r} is not supported; leave it out")


class LogCallback(keras.callbacks.Callback):
    """Sends the metrics of each epoch to the driver, from rank 0.

    Args:
        per_batch_log: Send the metrics of each step too.
    """

    def __init__(self, per_batch_log: bool = False) -> None:
        super().__init__()
        self.per_batch_log = per_batch_log

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Reports that an epoch begins."""
        self._send(f"Epoch {epoch + 1} begins")

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Sends the epoch's metrics."""
        self._send(f"Epoch {epoch + 1} ends: {_described(logs)}")

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Sends the step's metrics with `per_batch_log`."""
        if self.per_batch_log:
            self._send(f"Batch {batch + 1} ends: {_described(logs)}")

    def _send(self, text: str) -> None:
        if rank() == 0:
            log_to_driver(text)


def _described(logs: dict[str, float] | None) -> str:
    described = []
    for name, value in (logs or {}).items():
        try:
            described.append(f"{name}: {float(value):.4f}")
        except (TypeError, ValueError):
            warnings.warn(f"the metric {name!r} is not a number: {value!r}", stacklevel=2)
    return ", ".join(described) or "no metrics"


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


def __getattr__(name: str) -> Any:
    if name == "BestModelCheckpoint":
        raise NotSupportedError(
            "Horovod's BestModelCheckpoint is not supported: put keras.callbacks.ModelCheckpoint(path, "
            "save_best_only=True) after hvd.callbacks.MetricAverageCallback() on rank 0"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
