"""A rank that trains segments of several trials, assigned by the driver: its framework is imported only once."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.warm_start import WarmStart
from ..rank import process_context
from .backend import backend_class
from .job import TrainingJob
from .outcome import SegmentOutcome
from .segment import train_segment

_ASK_AGAIN_S = 0.1


def segment_request(job: TrainingJob, start: Checkpoint | None, attempt: int) -> dict[str, Any]:
    """Describes a segment in JSON values, for a rank that serves.

    Trials of a search differ in their hyperparameters; all else is that of the job with which the rank started.
    """
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
    `{"segment": request}`, `{"wait": True}` to ask again, or `{}` to end. Before each segment except the first the
    process is reset to its initial state, so that a trial gives the same numbers as in a fresh process.
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
            reset()
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
