"""A segment of a training on one rank: from its start or a checkpoint to a step, or to a pause or stop before it.

Records go through a file to the driver; only the driver writes to MLflow.

Errors that occur on every rank (a hyperparameter, a model that does not fit, a folder out of reach) are found before
the first step and returned as a value, so that the driver raises the error itself instead of a rank's log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ...errors import LakelensError, TrialError
from ..checkpoints.checkpoint import Checkpoint, open_checkpoint
from .backend import backend_class
from .job import TrainingJob
from .outcome import Failure, SegmentOutcome, outcome_of
from .prepared_rank import PreparedRank
from .training_loop import TrainingLoop
from .training_state import TrainingState

_T = TypeVar("_T")


def train_segment(job: TrainingJob, start: Checkpoint | None = None, until: int | None = None) -> SegmentOutcome:
    """Trains one rank; returns rank 0's result."""
    backend = backend_class(job.entrypoint.framework)
    world = backend.join()
    checkpoint = None
    state: TrainingState | None = None
    if start is not None:
        read, failure = attempted(lambda: _read(start)) if world.rank == 0 else (None, None)
        state, failure = world.broadcast_object((read and read[1], failure), name="lakelens.start")
        if failure is not None:
            return SegmentOutcome(failure=failure)
        checkpoint = read and read[0]
    prepared, failure = attempted(lambda: PreparedRank(job, backend, world, state, checkpoint))
    failures = [met for met in world.allgather_object(failure, name="lakelens.prepared") if met is not None]
    if failures or prepared is None:
        return SegmentOutcome(failure=failures[0])
    loop = TrainingLoop(prepared, state, checkpoint, until)
    try:
        return outcome_of(loop, loop.train())
    except TrialError as error:  # occurs on every rank
        return SegmentOutcome(failure=(type(error).__name__, str(error)))


def attempted(work: Callable[[], _T]) -> tuple[_T | None, Failure | None]:
    """Returns what `work` returns, or the LakelensError that it raises as a value."""
    try:
        return work(), None
    except LakelensError as error:
        return None, (type(error).__name__, str(error))


def _read(start: Checkpoint) -> tuple[Checkpoint, TrainingState]:
    checkpoint = open_checkpoint(start.path)
    return checkpoint, TrainingState.of(checkpoint)
