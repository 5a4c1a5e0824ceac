"""Prepares a rank as a training does before its first step, and tries a step; nothing of it is kept."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from .backend import backend_class
from .checks import PROBE_FILE
from .job import TrainingJob
from .outcome import SegmentOutcome
from .prepared_rank import PreparedRank
from .segment import attempted


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
