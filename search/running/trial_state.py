"""The state of each trial of a running search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import NotFiniteError

WAITING = "waiting"
RUNNING = "running"
PAUSED = "paused"
STOPPED = "stopped"
COMPLETED = "completed"
FAILED = "failed"
INVALID = "invalid"
ENDED = frozenset({STOPPED, COMPLETED, FAILED, INVALID})


@dataclass(frozen=True)
class Measurement:
    """A validation.

    Attributes:
        length: Where it was, in the search's unit.
        step: Where it was, in steps.
        epoch: Epochs complete or begun there.
        metric: Value of the metric that decides.
        metrics: All values.
    """

    length: float
    step: int
    epoch: int
    metric: float
    metrics: Mapping[str, float]


@dataclass
class TrialState:
    """One trial.

    Attributes:
        number: Its number, from 0 in the order of creation.
        hyperparameters: Drawn for it.
        asked: The length that it was last asked to reach.
        state: `waiting` for slots, `running`, `paused`, or how it has ended: `stopped`, `completed`, `failed`,
            `invalid`.
        length: How far it has come, at its last validation.
        last: That validation.
        best: Its best validation; None before one that gave a number.
        slots: Those that it runs on.
        run_id: Its MLflow run, once it has been launched.
        restarts: How often it was started again after a failure.
        error: Why it failed.
        validated_at: Lengths at which it was validated.
        was_in_flight: Whether it held slots when the search was killed; then it gets slots before others.
        diverged: Whether its loss or output was not finite, so that it is never the best.
    """

    number: int
    hyperparameters: dict[str, Any]
    asked: int
    state: str = WAITING
    length: float = 0
    last: Measurement | None = None
    best: Measurement | None = None
    slots: tuple[int, ...] = ()
    run_id: str | None = None
    restarts: int = 0
    error: str | None = None
    validated_at: set[float] = field(default_factory=set)
    was_in_flight: bool = False
    diverged: bool = False

    @property
    def can_be_best(self) -> bool:
        """Whether it may be the best trial: one that measured well and then diverged may not."""
        return self.state != INVALID and not self.diverged


def is_divergence(error: str | None) -> bool:
    """Returns whether the error of a trial, as the journal holds it, is that its loss or output was not finite."""
    return error is not None and error.startswith(f"{NotFiniteError.__name__}:")
