"""Keras 3 callbacks for several ranks, under Horovod's names, and the one that reports to the driver."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import keras

from ..errors import InvalidArgumentError
from . import distributed as world
from .optimizer import is_distributed

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "LogCallback",
    "MetricAverageCallback",
]


class _WorldCallback(keras.callbacks.Callback):
    """Base of the callbacks that speak to other ranks."""

    def set_model(self, model: Any) -> None:
        """Takes the model before its training function is made."""
        super().set_model(model)
        if world.size() == 1 or not getattr(model, "compiled", False):
            return
        inner = getattr(model.optimizer, "inner_optimizer", None)
        if inner is not None and is_distributed(inner) and not is_distributed(model.optimizer):
            raise InvalidArgumentError(
                "the model's dtype policy wrapped the distributed optimizer in a LossScaleOptimizer, so ranks "
                "could skip different steps; "
                "pass hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer)) to compile()"
            )
        if model.jit_compile:
            # Horovod's operations have no XLA kernels; on GPUs Keras compiles with XLA unless told otherwise.
            model.jit_compile = False


class BroadcastGlobalVariablesCallback(_WorldCallback):
    """Gives every rank the weights and the optimizer's state of one rank before the first step.

    Args:
        root_rank: The rank whose values all get.
    """

    def __init__(self, root_rank: int = 0) -> None:
        super().__init__()
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
        if world.size() == 1:
            return
        optimizer = self.model.optimizer
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        variables = {id(variable): variable for variable in [*self.model.variables, *optimizer.variables]}
        world.broadcast_variables(list(variables.values()), self.root_rank)


class MetricAverageCallback(_WorldCallback):
    """Averages the metrics of each epoch over all ranks, by the rows that each rank saw.

    Put it before callbacks that decide by metrics (EarlyStopping, ModelCheckpoint, ReduceLROnPlateau), so that all
    ranks decide alike. A metric that only some ranks have is averaged over those, and then known to all.
    """

    def __init__(self) -> None:
        super().__init__()
        self._training_counts: dict[str, float] = {}

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Forgets the last epoch's counts."""
        self._training_counts = {}

    def on_test_begin(self, logs: dict[str, float] | None = None) -> None:
        """Keeps the training metrics' counts: validation uses the same metric objects."""
        if not self._training_counts:
            self._training_counts = self._counts()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Replaces the values in `logs` by their averages."""
        if logs is None or world.size() == 1:
            return
        now = self._counts()
        training = self._training_counts or now
        mine = {name: (float(value), _rows(name, training, now)) for name, value in logs.items()}
        gathered = world.allgather_object(mine, name="lakelens.metrics")
        for name in sorted({name for metrics in gathered for name in metrics}):
            pairs = [metrics[name] for metrics in gathered if name in metrics]
            total = sum(count for _, count in pairs)
            logs[name] = sum(value * count for value, count in pairs) / total if total > 0 else pairs[0][0]

    def _counts(self) -> dict[str, float]:
        """How much weight each metric has seen since it was reset."""
        flat = [inner for metric in self.model.metrics for inner in getattr(metric, "metrics", [metric])]
        return {metric.name: float(metric.count) for metric in flat if hasattr(metric, "count")}


def _rows(name: str, training: dict[str, float], validation: dict[str, float]) -> float:
    """How many rows a logged value stands for; of a metric that does not count, as many as of the loss."""
    counts, plain = (validation, name[len("val_") :]) if name.startswith("val_") else (training, name)
    return counts.get(plain, counts.get("loss", 1.0))


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Multiplies a learning rate by a factor of the epoch.

    Args:
        initial_lr: The learning rate that is multiplied.
        multiplier: A number, or a function of the epoch (with a fraction unless `staircase`) that gives one.
        start_epoch: First epoch that it acts in.
        end_epoch: First epoch that it no longer acts in; None for all.
        staircase: Change once an epoch, not each step.
        steps_per_epoch: Steps of an epoch; needed without `staircase` if Keras does not know them.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr <= 0:
            raise InvalidArgumentError(f"initial_lr={initial_lr!r}: must be above 0")
        self.initial_lr = initial_lr
        self.multiplier = multiplier if callable(multiplier) else (lambda _epoch, factor=multiplier: factor)
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.steps_per_epoch = steps_per_epoch
        self._epoch = 0

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Learns how many steps an epoch has."""
        self.steps_per_epoch = self.steps_per_epoch or (self.params or {}).get("steps")
        if not self.staircase and not self.steps_per_epoch:
            raise InvalidArgumentError(
                "steps_per_epoch is not known to Keras; pass it to the callback, or use staircase=True"
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
        if epoch >= self.start_epoch and (self.end_epoch is None or epoch < self.end_epoch):
            self.model.optimizer.learning_rate = self.initial_lr * self.multiplier(epoch)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate step by step from `initial_lr / size` to `initial_lr`.

    Source: Goyal et al. 2017, Accurate, Large Minibatch SGD (arXiv:1706.02677).

    Args:
        initial_lr: The learning rate after warm-up, usually scaled by the number of ranks.
        warmup_epochs: Epochs that the rise takes.
        steps_per_epoch: As in `LearningRateScheduleCallback`.
        verbose: 1 says when warm-up is over.
    """

    def __init__(
        self, initial_lr: float, warmup_epochs: float = 5, steps_per_epoch: int | None = None, verbose: int = 0
    ) -> None:
        def multiplier(epoch: float) -> float:
            at = epoch + 1.0 / (self.steps_per_epoch or 1)
            return 1.0 / world.size() * (at * (world.size() - 1) / warmup_epochs + 1)

        if warmup_epochs <= 0:
            raise InvalidArgumentError(f"warmup_epochs={warmup_epochs!r}: must be above 0")
        super().__init__(initial_lr, multiplier, 0, None, False, steps_per_epoch)
        self.warmup_epochs = warmup_epochs
        self.verbose = verbose

    def _adjust(self, epoch: float) -> None:
        if epoch < self.warmup_epochs:
            super()._adjust(epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Says when warm-up is over."""
        super().on_epoch_end(epoch, logs)
        if self.verbose > 0 and epoch + 1 == self.warmup_epochs and world.rank() == 0:
            world.log_to_driver(f"warm-up is over: learning rate {float(self.model.optimizer.learning_rate):g}")


class LogCallback(keras.callbacks.Callback):
    """Sends the metrics of each epoch to the driver, from rank 0.

    Args:
        per_batch_log: Also those of each step.
    """

    def __init__(self, per_batch_log: bool = False) -> None:
        super().__init__()
        self.per_batch_log = per_batch_log

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Says that an epoch begins."""
        self._send(f"Epoch {epoch + 1} begins")

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Sends the epoch's metrics."""
        self._send(f"Epoch {epoch + 1} ends: {_described(logs)}")

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Sends the step's metrics, if asked to."""
        if self.per_batch_log:
            self._send(f"Batch {batch + 1} ends: {_described(logs)}")

    def _send(self, text: str) -> None:
        if world.rank() == 0:
            world.log_to_driver(text)


def _described(logs: dict[str, float] | None) -> str:
    described = []
    for name, value in (logs or {}).items():
        try:
            described.append(f"{name}: {float(value):.4f}")
        except (TypeError, ValueError):
            warnings.warn(f"the metric {name!r} is no number: {value!r}", stacklevel=2)
    return ", ".join(described) or "no metrics"
