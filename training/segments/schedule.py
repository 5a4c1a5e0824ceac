"""The boundaries of a training as step numbers, equal on every rank. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import InvalidArgumentError


@dataclass(frozen=True)
class Schedule:
    """At which steps a training validates, ends an epoch, writes a checkpoint and ends.

    Steps are counted from the training's start: step 0 is before the first batch. Boundaries do not depend on the
    end of a segment, so that a continued training has the same ones as an uninterrupted training.

    Attributes:
        steps_per_epoch: Steps of an epoch.
        length: Steps of the training.
        validation_period: Steps between validations.
        checkpoint_period: Steps between checkpoints for restarts; None if there is none.
        validations: More steps to validate after.
    """

    steps_per_epoch: int
    length: int
    validation_period: int
    checkpoint_period: int | None = None
    validations: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        for name in ("steps_per_epoch", "length", "validation_period", "checkpoint_period"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidArgumentError(f"{name} is {value} steps; it must be at least 1")

    @property
    def counts_epochs(self) -> bool:
        """Whether every validation is at the end of an epoch; records then count epochs, else steps."""
        boundaries = (self.validation_period, self.length, *self.validations)
        return all(step % self.steps_per_epoch == 0 for step in boundaries)

    def epoch(self, step: int) -> int:
        """Counts the complete epochs after a step."""
        return step // self.steps_per_epoch

    def ends_epoch(self, step: int) -> bool:
        """Returns whether an epoch is complete after a step; the next one begins there."""
        return step % self.steps_per_epoch == 0

    def validates(self, step: int) -> bool:
        """Returns whether the model is validated after a step."""
        return step % self.validation_period == 0 or step == self.length or step in self.validations

    def writes(self, step: int) -> bool:
        """Returns whether a checkpoint for restarts is due after a step."""
        return self.checkpoint_period is not None and step % self.checkpoint_period == 0

    def recorded_as(self, step: int) -> int:
        """Returns the number under which a step's metrics are recorded: its epoch, from 1, or the step itself."""
        return -(-step // self.steps_per_epoch) if self.counts_epochs else step
