"""How a training computes and combines gradients: precision, aggregation, compression, learning rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ...errors import TrialError

if TYPE_CHECKING:
    import keras


@dataclass(frozen=True)
class OptimizationRules:
    """The experiment's `optimizations`, for ranks.

    Attributes:
        mixed_precision: The type of Keras' mixed precision policy; None if there is none.
        aggregation_frequency: Batches whose gradients are averaged before one update.
        gradient_compression: The type in which gradients are sent.
        learning_rate_scaling: Factor on the learning rate by the number of workers: 1, n or the square root of n.
        warmup_epochs: Epochs over which the learning rate rises to its scaled value.
    """

    mixed_precision: Literal["float16", "bfloat16"] | None = None
    aggregation_frequency: int = 1
    gradient_compression: Literal["none", "fp16"] = "none"
    learning_rate_scaling: Literal["none", "linear", "sqrt"] = "none"
    warmup_epochs: float = 0.0

    def factor(self, workers: int) -> float:
        """Returns the factor on the learning rate.

        Args:
            workers: Ranks, or replicas of a process, that share each batch.
        """
        return {"none": 1.0, "linear": float(workers), "sqrt": math.sqrt(workers)}[self.learning_rate_scaling]

    def described(self, workers: int, length: int) -> list[str]:
        """Describes the enabled optimizations, a line each.

        Args:
            workers: As for `factor`.
            length: Steps of the training.
        """
        lines = []
        if self.mixed_precision is not None:
            lines.append(f"mixed_precision: dtype policy mixed_{self.mixed_precision}; weights stay float32")
        every = self.aggregation_frequency
        if every > 1:
            left = f"; the last {length % every} steps fill no group and are not applied" if length % every else ""
            lines.append(f"aggregation_frequency: gradients of {every} steps are averaged before one update{left}")
        if self.gradient_compression != "none":
            travels = f"float16 gradients between {workers} workers" if workers > 1 else "no gradients are sent"
            lines.append(f"gradient_compression: {travels}")
        return lines


def distributed(optimizer: Any, rules: OptimizationRules) -> Any:
    """Makes an optimizer combine gradients over ranks or replicas as the rules say."""
    from .. import distributed as world

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

    Args:
        optimizer: The optimizer, with the learning rate that the Trial gave it.
        rules: What scales it.
        workers: Ranks or replicas that share each batch.
        steps_per_epoch: Steps of an epoch.

    Raises:
        TrialError: If the optimizer follows a schedule, which nothing else can scale.
    """

    def __init__(
        self, optimizer: keras.optimizers.Optimizer, rules: OptimizationRules, workers: int, steps_per_epoch: int
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
        """Sets the rate of a step of the warm-up; later it leaves the rate alone.

        Args:
            step: Steps trained before it.
        """
        if step < self._steps:
            self._optimizer.learning_rate = self._target * (step + 1) / self._steps


def _require_a_number(optimizer: Any) -> None:
    import keras

    schedule = getattr(getattr(optimizer, "inner_optimizer", optimizer), "_learning_rate", None)
    if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        raise TrialError(
            f"optimizations.learning_rate_scaling and warmup_epochs change a learning rate that is a number, and the "
            f"model's optimizer follows {type(schedule).__name__}; scale it in build_model, or remove the keys"
        )
