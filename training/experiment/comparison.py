"""Compares two runs bit for bit: metrics, weights and environments."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ...tracking.names import changed_names
from ...tracking.runs import CHECKPOINT_ARTIFACT, as_tracking_errors, open_client
from ..checkpoints.checkpoint import Checkpoint, open_checkpoint
from ..checkpoints.manifests import TORCH
from ..checkpoints.torch_files import OPTIMIZER_FILE, read_tensors

if TYPE_CHECKING:
    import numpy as np
    from mlflow import MlflowClient

_WEIGHTS = "model.weights.h5"
# If everything differs, the first lines are enough.
_MOST_LINES = 10


def differences(tracking_uri: str, first: str, second: str) -> list[str]:
    """Lists the differences of two runs' results; empty if they are equal bit for bit.

    Compares the histories of the model's metrics, and weights and optimizer of the checkpoints.
    """
    client = open_client(tracking_uri)
    with as_tracking_errors(tracking_uri, f"read runs {first} and {second}"), TemporaryDirectory() as folder:
        checkpoints = [_checkpoint(client, run, Path(folder, run)) for run in (first, second)]
        names = sorted(set().union(*(kept.metadata["metrics"] for kept in checkpoints)))
        metrics = [line for name in names for line in _in_metric(client, name, first, second)]
        weights = [_weights(kept) for kept in checkpoints]
    return _shortened(metrics) + _shortened(_in_weights(*weights))


def _checkpoint(client: MlflowClient, run_id: str, folder: Path) -> Checkpoint:
    folder.mkdir()
    return open_checkpoint(client.download_artifacts(run_id, CHECKPOINT_ARTIFACT, str(folder)))


def _in_metric(client: MlflowClient, name: str, first: str, second: str) -> list[str]:
    own = [changed_names(client.get_run(run).data.tags).get(name, name) for run in (first, second)]
    one, other = (
        {point.step: point.value for point in client.get_metric_history(run, name)}
        for run, name in zip((first, second), own, strict=True)
    )
    return [
        f"{name} at {step}: {one.get(step)} and {other.get(step)}"
        for step in sorted(one.keys() | other.keys())
        if repr(one.get(step)) != repr(other.get(step))  # NaN is equal to NaN here
    ]


def _in_weights(one: Mapping[str, np.ndarray[Any, Any]], other: Mapping[str, np.ndarray[Any, Any]]) -> list[str]:
    import numpy as np

    lines = []
    for name in sorted(one.keys() | other.keys()):
        mine, theirs = one.get(name), other.get(name)
        if mine is None or theirs is None:
            lines.append(f"weight {name} is in one of the checkpoints only")
        elif mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            lines.append(f"weight {name}: {mine.dtype} {mine.shape} and {theirs.dtype} {theirs.shape}")
        elif mine.tobytes() != theirs.tobytes():
            largest = np.max(np.abs(mine.astype("float64") - theirs.astype("float64")))
            lines.append(f"weight {name}: by at most {largest:.3g}")
    return lines


def _weights(checkpoint: Checkpoint) -> dict[str, np.ndarray[Any, Any]]:
    """Reads weights and optimizer of a checkpoint by name, without building the model."""
    if checkpoint.backend == TORCH:
        return _torch_weights(checkpoint)
    import h5py

    found: dict[str, np.ndarray[Any, Any]] = {}

    def take(name: str, entry: object) -> None:
        if isinstance(entry, h5py.Dataset):
            found[name] = entry[()]

    with zipfile.ZipFile(checkpoint.model_path) as archive, h5py.File(io.BytesIO(archive.read(_WEIGHTS))) as file:
        file.visititems(take)
    return found


def _torch_weights(checkpoint: Checkpoint) -> dict[str, np.ndarray[Any, Any]]:
    import torch

    model, optimizer = read_tensors(checkpoint.model_path), read_tensors(checkpoint.path / OPTIMIZER_FILE)
    found = {**model, **{f"optimizer{name}": tensor for name, tensor in optimizer.items()}}
    # NumPy has no bfloat16; the conversion to float32 is exact.
    return {name: (t.float() if t.dtype is torch.bfloat16 else t).numpy() for name, t in found.items()}


def _shortened(lines: list[str]) -> list[str]:
    return lines if len(lines) <= _MOST_LINES else [*lines[:_MOST_LINES], f"and {len(lines) - _MOST_LINES} more"]


def changed_packages(recorded: list[str], installed: list[str]) -> list[str]:
    """Lists the packages of a recorded environment that have another version now, or are no longer installed."""
    then, now = ({_name_of(line): line for line in lines if line.strip()} for lines in (recorded, installed))
    return [
        f"{line} then, {now.get(name, 'not installed')} now"
        for name, line in sorted(then.items())
        if now.get(name) != line
    ]


def _name_of(line: str) -> str:
    return line.partition("==")[0].partition(" @ ")[0].strip().lower()
