"""Trains a run again from its record alone (config, code, table version) and compares the results bit for bit."""

from __future__ import annotations

import contextlib
import io
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ...errors import InvalidArgumentError
from ...job_keys import Job
from ...spark.session import SessionSource
from ...stores.data_files import write_files
from ...tracking.names import changed_names
from ...tracking.run_listing import get_run, open_existing_store
from ...tracking.runs import CHECKPOINT_ARTIFACT, ENTRYPOINT_TAG, as_tracking_errors
from ..checkpoints.checkpoint import Checkpoint, open_checkpoint
from ..checkpoints.manifests import TORCH
from ..checkpoints.torch_files import OPTIMIZER_FILE, read_tensors
from ..record.code_record import code_of, installed_packages, read_code, read_packages
from ..trials.entrypoint import EntryPoint
from .config_record import read_config
from .run_trial import TrainResult, run_trial

if TYPE_CHECKING:
    import numpy as np
    from mlflow import MlflowClient

# Imports the recorded module from the recorded folder, which Python searches first.
_LOADER = "reproduced.py"
_NOT_DETERMINISTIC = (
    "the run was not deterministic, so the order of its sums may differ; with "
    "reproducibility: {deterministic: true} a training on CPU is bit-for-bit identical when it is trained again"
)
_WEIGHTS = "model.weights.h5"
# If everything differs, the first lines are enough.
_MOST_LINES = 10


@dataclass(frozen=True)
class Reproduction:
    """The result of training a run again.

    Attributes:
        origin: The run that was trained again.
        result: The new training.
        differences: Differences of metrics and weights from the origin's; empty if all are equal bit for bit.
        environment: What may explain a difference: changed code and packages, and a run that was not deterministic.
    """

    origin: str
    result: TrainResult
    differences: list[str]
    environment: list[str]

    @property
    def equal(self) -> bool:
        """Whether all metrics and weights are equal bit for bit."""
        return not self.differences


def reproduce(
    run_id: str,
    *,
    tracking_uri: str | None = None,
    checkpoint_dir: str | Path | None = None,
    spark: SessionSource | None = None,
    job: str | Job | None = None,
) -> Reproduction:
    """Trains a finished run again, in a new run that names its origin, and compares the results bit for bit.

    Config, table version and the code of the entry point come from the run's record; packages are the installed ones,
    and changed ones are listed. Equal results can be expected on CPU, with deterministic operations, one thread per
    rank and the same number of ranks.

    Args:
        run_id: A finished run.
        tracking_uri: As for `train`.
        checkpoint_dir: Instead of the run's.
        spark: As for `train`.
        job: As for `train`.

    Raises:
        InvalidArgumentError: If the run has not finished, is a trial of a search, or its code is not recorded.
        LakelensError: As `train`.

    Examples:
        >>> again = lakelens.reproduce(run.run_id)
        >>> again.origin == run.run_id, again.result.version
        (True, 0)
    """
    uri, client = open_existing_store(tracking_uri)
    with as_tracking_errors(uri, f"read run {run_id}"):
        origin = get_run(client, run_id)
    run_id = origin.info.run_id
    if origin.info.status != "FINISHED":
        raise InvalidArgumentError(
            f"run {run_id} is {origin.info.status}; only a finished run has a result to compare with. "
            f"lakelens train --resume {run_id} resumes one that failed or was interrupted"
        )
    with as_tracking_errors(uri, f"read run {run_id}"):
        if not client.list_artifacts(run_id, CHECKPOINT_ARTIFACT):
            raise InvalidArgumentError(
                f"run {run_id} has no checkpoint to compare with: a search records that of its best trial alone, in "
                "its own run. Train the trial's recorded experiment with lakelens train, and compare the metrics"
            )
    config = read_config(uri, run_id)
    tracking = config.tracking.model_copy(update={"uri": uri, "register_as": None})
    storage, name = config.checkpoint_storage, f"{origin.info.run_name}, again"
    if checkpoint_dir is not None:
        storage = storage.model_copy(update={"path": str(checkpoint_dir)})
    with _recorded_entrypoint(uri, run_id, origin.data.tags.get(ENTRYPOINT_TAG, config.entrypoint)) as entry:
        environment = _changes(uri, run_id, entry)
        result = run_trial(
            config.model_copy(update={"name": name, "job": None, "tracking": tracking, "checkpoint_storage": storage}),
            entrypoint=entry,
            spark=spark,
            reproduces=run_id,
            job=Job.of(job),
        )
    found = _differences(client, uri, run_id, result.run_id)
    if found and not config.reproducibility.deterministic:
        environment.append(_NOT_DETERMINISTIC)
    return Reproduction(run_id, result, found, environment)


@contextlib.contextmanager
def _recorded_entrypoint(tracking_uri: str, run_id: str, name: str) -> Iterator[EntryPoint]:
    """Writes the recorded code into a folder and returns its entry point, under its own name."""
    target, _, class_name = name.rpartition(":")
    if target.split(".")[0] == "lakelens":
        yield EntryPoint.parse(name)
        return
    code = read_code(tracking_uri, run_id)
    if not code:
        raise InvalidArgumentError(
            f"run {run_id} has no recorded code: {name} was defined in a notebook or a console. Put the class into "
            "a file and train that"
        )
    with TemporaryDirectory(prefix="lakelens-reproduce-") as folder:
        write_files(Path(folder), code)
        path = Path(folder, Path(target).name if target.endswith(".py") else _LOADER)
        if not target.endswith(".py"):
            path.write_text(f"from {target} import {class_name}\n", encoding="utf-8")
        yield replace(EntryPoint.parse(f"{path}:{class_name}"), name=name)


def _changes(tracking_uri: str, run_id: str, entry: EntryPoint) -> list[str]:
    """Lists the differences from the record in lakelens' own code and in the packages."""
    recorded = read_code(tracking_uri, run_id) if entry.source is None else {}
    own = code_of(entry) if recorded else {}
    changed = [f"{entry.target} has changed since" for path, content in own.items() if recorded.get(path) != content]
    return changed + changed_packages(read_packages(tracking_uri, run_id), installed_packages())


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


def _differences(client: MlflowClient, tracking_uri: str, first: str, second: str) -> list[str]:
    """Lists the differences of two runs' metric histories, weights and optimizers, which are compared bit for bit."""
    with as_tracking_errors(tracking_uri, f"read runs {first} and {second}"), TemporaryDirectory() as folder:
        checkpoints = []
        for run in (first, second):
            place = Path(folder, run)
            place.mkdir()
            checkpoints.append(open_checkpoint(client.download_artifacts(run, CHECKPOINT_ARTIFACT, str(place))))
        names = sorted(set().union(*(kept.metadata["metrics"] for kept in checkpoints)))
        metrics = [line for name in names for line in _in_metric(client, name, first, second)]
        one, other = map(_weights, checkpoints)
    return _shortened(metrics) + _shortened(_in_weights(one, other))


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
