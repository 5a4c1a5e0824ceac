"""A segment of a training on one rank, to a step, a pause or a stop; segments of several trials; and a check of one.

Errors that occur on every rank (a hyperparameter, a model that does not fit, a folder out of reach) are found before
the first step and returned as a value, so that the driver raises the error itself instead of a rank's log.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from ...errors import LakelensError, TrialError
from ..checkpoints.checkpoint import Checkpoint, open_checkpoint
from ..checkpoints.warm_start import WarmStart
from ..rank import process_context
from .backend import PreparedRank, backend_class
from .checks import PROBE_FILE
from .job import TrainingJob
from .outcome import Failure, SegmentOutcome, outcome_of
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


_ASK_AGAIN_S = 0.1


def segment_request(job: TrainingJob, start: Checkpoint | None, attempt: int) -> dict[str, Any]:
    """Describes a segment in JSON values; all else is that of the job with which the serving rank started."""
    return {
        "attempt": attempt,
        "hyperparameters": job.config.hyperparameters,
        "validations": sorted(job.validations),
        "folder": str(job.folder),
        "run_id": job.run.run_id,
        "start": None if start is None else str(start.path),
        "warm_start": None if job.warm_start is None else [job.warm_start.uri, str(job.warm_start.folder)],
    }


def requested(request: Mapping[str, Any], job: TrainingJob) -> tuple[TrainingJob, Checkpoint | None]:
    """Reads a request of `segment_request`."""
    start, weights = request["start"], request["warm_start"]
    asked = replace(
        job,
        config=job.config.model_copy(update={"hyperparameters": request["hyperparameters"]}),
        validations=frozenset(request["validations"]),
        folder=Path(request["folder"]),
        run=replace(job.run, run_id=request["run_id"]),
        warm_start=None if weights is None else WarmStart(weights[0], Path(weights[1])),
    )
    return asked, None if start is None else Checkpoint(Path(start), "", {})


def serve_segments(job: TrainingJob) -> int:
    """Trains segments on this rank until the driver has no more.

    Rank 0 asks the driver `{"next": outcome}`, with the outcome of the last segment or None; the answer is
    `{"segment": request}`, `{"wait": True}` to ask again, or `{}` to end.
    """
    backend = backend_class(job.entrypoint.framework)
    world, reset = backend.join(), backend.remember_settings()
    served = 0
    outcome: dict[str, Any] | None = None
    while True:
        answer = _next(outcome) if world.rank == 0 else None
        answer = world.broadcast_object(answer, name="lakelens.next")
        if "segment" not in answer:
            return served
        if served:
            reset()  # so that a trial gives the same numbers as in a fresh process
        # A process serves several trials, and each has its own number of restarts.
        link = replace(process_context.current(), attempt=answer["segment"]["attempt"])
        process_context.attach(link)
        outcome = asdict(_trained(*requested(answer["segment"], job)))
        served += 1


def _next(outcome: dict[str, Any] | None) -> dict[str, Any]:
    answer = process_context.ask({"next": outcome})
    while "wait" in answer:
        time.sleep(_ASK_AGAIN_S)
        answer = process_context.ask({"next": None})
    return answer


def _trained(job: TrainingJob, start: Checkpoint | None) -> SegmentOutcome:
    # In a separate function, so that model and feed are freed before the next segment.
    return train_segment(job, start)


def check_trial(job: TrainingJob, ranks: int) -> SegmentOutcome:
    """Imports the Trial, builds its model, checks both and tries a step, as rank 0 of a job does."""
    backend = backend_class(job.entrypoint.framework)
    world = backend.join()
    # Without a GPU, as here, PyTorch synchronises no batch norm between ranks; those of the training may have one.
    if not job.config.optimizations.sync_batch_norm:
        world.size = ranks
    with tempfile.TemporaryDirectory(prefix="lakelens-") as folder:
        Path(folder, PROBE_FILE).write_text(job.run.run_id, encoding="utf-8")
        here = replace(job, folder=Path(folder))
        _, failure = attempted(lambda: PreparedRank(here, backend, world, None, None).backend.try_step())
    return SegmentOutcome(failure=failure)
