"""Evaluates a training's final checkpoint on the validation rows of all ranks.

Rank 0 writes the task's counts into the folder of the run, where the driver reads them.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import NotFiniteError, TrialError
from ...stores.data_files import write_bytes
from .. import distributed as world
from ..checkpoints.manifests import MODEL_FILE
from ..rank.process_context import log_to_driver

if TYPE_CHECKING:
    from ..tasks.task import Counts
    from .prepared_rank import PreparedRank


EVALUATION_FILE = "evaluation.npz"


def read_counts(folder: Path) -> Counts:
    """Reads rank 0's counts from a folder; empty if there are none."""
    import numpy as np

    path = folder / EVALUATION_FILE
    if not path.exists():
        return {}
    with np.load(path, allow_pickle=False) as counts:
        return dict(counts)


def evaluate(prepared: PreparedRank, checkpoint: str, step: int) -> None:
    """Counts over all ranks, in another read of the validation rows; every rank calls it.

    Nothing is written without validation, or if model and labels do not fit the task.

    Args:
        prepared: The rank, whose model gets the checkpoint's weights.
        checkpoint: Folder of the checkpoint, on rank 0; "" for the present weights.
        step: The step of these weights.

    Raises:
        NotFiniteError: If the model gives NaN or infinity for a validation row; on every rank.
    """
    import numpy as np

    task, backend = prepared.job.task, prepared.backend
    if prepared.job.validation_feed is None:
        return
    backend.load(Path(checkpoint, MODEL_FILE) if checkpoint else None)
    described = world.broadcast_object(backend.described, 0, name="lakelens.described")
    failure, counts = None, task.no_counts()
    try:
        counts = backend.count(described)
    except TrialError as error:
        failure = (isinstance(error, NotFiniteError), str(error))
    failures = [found for found in world.allgather_object(failure, name="lakelens.counted") if found is not None]
    if failures:
        not_finite, message = max(failures)  # all ranks raise, or none does
        if not_finite:
            raise NotFiniteError(f"{message} after step {step}; lower the learning rate, or look at the loss")
        if prepared.rank == 0:
            log_to_driver(f"the model is not evaluated by class: {message}")
        return
    names = list(counts)
    sums = world.grouped_allreduce([counts[name] for name in names], name="lakelens.counts", op=world.Sum)
    if prepared.rank == 0:
        content = io.BytesIO()
        arrays: dict[str, Any] = {name: np.asarray(total) for name, total in zip(names, sums, strict=True)}
        np.savez(content, **arrays)
        write_bytes(str(prepared.job.folder / EVALUATION_FILE), content.getvalue(), None)
