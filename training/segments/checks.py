"""A rank's checks of the job's folder and of losses."""

from __future__ import annotations

import math
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import CheckpointError, NotFiniteError

if TYPE_CHECKING:
    from ...tracking.runs import RunReference
    from ..checkpoints.checkpoint import Checkpoint
    from ..trials.entrypoint import EntryPoint

# The driver leaves the run's id in a file of this name in the run's checkpoint folder.
PROBE_FILE = ".reachable"


def require_finite_losses(metrics: Mapping[str, float], step: int, epoch: int) -> None:
    """Checks losses; other metrics may be NaN, such as the precision of a class without rows."""
    for name, value in metrics.items():
        if (name == "loss" or name.endswith("_loss")) and not math.isfinite(value):
            raise NotFiniteError(
                f"{name} is {value} after step {step} (epoch {epoch}); lower the learning rate, or look at the labels "
                "and the loss"
            )


def require_backend(checkpoint: Checkpoint, entrypoint: EntryPoint) -> None:
    """Checks that a checkpoint's model is of the framework of a Trial."""
    if checkpoint.backend != entrypoint.framework:
        raise CheckpointError(
            f"{checkpoint.path} is a checkpoint of a {checkpoint.backend} model, and {entrypoint.name} is a Trial of "
            f"{entrypoint.framework}; weights are not converted. Give a checkpoint of {entrypoint.framework}"
        )


def require_reachable(folder: Path, run: RunReference) -> None:
    """Checks, on rank 0, that it writes to the driver's folder."""
    probe = folder / PROBE_FILE
    here = socket.gethostname()
    try:
        seen = probe.read_text(encoding="utf-8")
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise CheckpointError(
            f"rank 0 on {here} cannot read and write {folder}, which the driver on {run.created_on} made "
            f"({error}); give a checkpoint_storage.path that both mount, such as NFS, /dbfs or /Volumes"
        ) from error
    if seen != run.run_id:
        raise CheckpointError(
            f"{folder} on {here} is not the folder of that name on the driver's machine {run.created_on}; "
            "give a checkpoint_storage.path that both mount, such as NFS, /dbfs or /Volumes"
        )
