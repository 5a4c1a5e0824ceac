"""Measures a training on the validation rows of all ranks: at each validation, and its final checkpoint at the end."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import NotFiniteError, NotProbabilitiesError, TrialError
from ...tracking.run_writer import write_run_file
from ..checkpoints.manifests import MODEL_FILES
from ..rank.process_context import log_to_driver

if TYPE_CHECKING:
    from ..tasks.task import Counts
    from .backend import PreparedRank


EVALUATION_FILE, PICTURES_FOLDER = "evaluation.npz", "pictures"
# Errors of the model, whatever the labels are.
_OF_THE_MODEL = (NotFiniteError, NotProbabilitiesError)


def read_counts(folder: Path) -> Counts:
    """Reads rank 0's counts from a folder; empty if there are none."""
    path = folder / EVALUATION_FILE
    if not path.exists():
        return {}
    with np.load(path, allow_pickle=False) as counts:
        return dict(counts)


def validate(prepared: PreparedRank, step: int, *, in_epoch: bool = True) -> dict[str, float]:
    """Returns the metrics of the model and of the task's counts over the validation rows of all ranks, as `val_...`."""
    task, metrics = prepared.context.task, prepared.backend.validate(in_epoch=in_epoch)
    if not task.metric_names or prepared.job.validation_feed is None:
        return metrics
    counted = task.metrics(counts_over_ranks(prepared))
    picture = prepared.backend.picture
    if prepared.world.rank == 0 and picture is not None:
        write_run_file(prepared.job.folder / PICTURES_FOLDER / f"step-{step:08d}.jpg", picture)
    return metrics | {f"val_{name}": value for name, value in counted.items()}


def counts_over_ranks(prepared: PreparedRank) -> Counts:
    """Returns the task's counts of the validation rows of all ranks; every rank calls it."""
    task, backend, world = prepared.context.task, prepared.backend, prepared.world
    described = world.broadcast_object(backend.described, name="lakelens.described")
    failure: TrialError | None = None
    counts = task.no_counts()
    try:
        counts = backend.count(described)
    except TrialError as error:
        failure = error
    gathered = world.allgather_object((failure, counts), name="lakelens.counted")
    failures = [found for found, _ in gathered if found is not None]
    if failures:
        raise next((each for each in failures if isinstance(each, _OF_THE_MODEL)), failures[0])
    return task.joined([each for _, each in gathered])


def evaluate(prepared: PreparedRank, checkpoint: str, step: int) -> None:
    """Writes the task's counts of a checkpoint into the run's folder, for the driver; every rank calls it."""
    if prepared.job.validation_feed is None:
        return
    backend = prepared.backend
    backend.load(Path(checkpoint, MODEL_FILES[backend.name]) if checkpoint else None)
    try:
        counts = counts_over_ranks(prepared)
    except NotFiniteError as error:
        raise NotFiniteError(f"{error} after step {step}; lower the learning rate, or look at the loss") from error
    except NotProbabilitiesError:
        raise
    except TrialError as error:
        if prepared.world.rank == 0:
            log_to_driver(f"the model is not evaluated by class: {error}")
        return
    if prepared.world.rank == 0:
        warning = prepared.context.task.warning(counts)
        if warning is not None:
            log_to_driver(f"warning: {warning}")
        content = io.BytesIO()
        arrays: dict[str, Any] = dict(counts)
        np.savez(content, **arrays)
        write_run_file(prepared.job.folder / EVALUATION_FILE, content.getvalue())
