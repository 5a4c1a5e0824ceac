"""The optimizer of a training: combines gradients over workers, with a scaled and warmed-up learning rate."""

from __future__ import annotations

import math
from typing import Any

import keras

from ....errors import TrialError
from ... import distributed as world
from ...configuration.sections import Optimizations
from ...keras_internals import given_learning_rate


def distributed(optimizer: Any, rules: Optimizations) -> Any:
    """Makes an optimizer combine gradients over ranks or replicas as the rules say."""
    return world.DistributedOptimizer(
        optimizer,
        compression=world.Compression[rules.gradient_compression],
        backward_passes_per_step=rules.aggregation_frequency,
        average_aggregated_gradients=True,
    )


class LearningRate:
    """A training's learning rate: scaled at once by the number of workers, and raised to that over its first steps.

    It rises linearly with the steps; after the warm-up the optimizer and callbacks control it. It depends only on the
    step, so that a continued training continues exactly.
    """

    def __init__(
        self, optimizer: keras.optimizers.Optimizer, rules: Optimizations, workers: int, steps_per_epoch: int
    ) -> None:
        self._optimizer = optimizer
        self._steps = math.ceil(rules.warmup_epochs * steps_per_epoch)
        self._target = 0.0
        self.described = ""
        factor = rules.factor(workers)
        if rules.learning_rate_scaling == "none" and self._steps == 0:
            return
        _require_a_number(optimizer)
        given = float(optimizer.learning_rate.numpy())  # the variable may have a copy on each device
        self._target = given * factor
        optimizer.learning_rate = self._target
        self.described = f"learning rate {self._target:g}"
        if rules.learning_rate_scaling != "none":
            self.described += f" = {given:g} x {factor:g} ({rules.learning_rate_scaling}, {workers} workers)"
        if self._steps:
            self.described += f", reached after {self._steps} steps of warm-up"

    def set_before(self, step: int) -> None:
        """Sets the rate of a step of the warm-up; later it leaves the rate alone."""
        if step < self._steps:
            self._optimizer.learning_rate = self._target * (step + 1) / self._steps


def _require_a_number(optimizer: Any) -> None:
    schedule = given_learning_rate(getattr(optimizer, "inner_optimizer", optimizer))
    if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        raise TrialError(
            f"optimizations.learning_rate_scaling and warmup_epochs change a learning rate that is a number, and the "
            f"model's optimizer follows {type(schedule).__name__}; scale it in build_model, or remove the keys"
        )
