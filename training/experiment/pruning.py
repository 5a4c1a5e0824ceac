"""Removes checkpoints of ended trials that no retention rule keeps."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from ...errors import CheckpointError
from ...stores.write_once import is_partial
from ..checkpoints.checkpoint import Checkpoint, remove_checkpoint
from ..checkpoints.manifests import MANIFEST_FILE, read_manifest
from ..checkpoints.retention import CheckpointRecord, Retention, checkpoints_to_keep
from ..trials.metrics import Goal


def prune(
    folders: Mapping[int, Path],
    rules: Retention,
    goal: Goal,
    *,
    running: Collection[int] = (),
    needed: Collection[Path] = (),
) -> list[Path]:
    """Removes the checkpoints that no rule keeps."""
    found = {f"{trial}/{path.name}": (trial, path) for trial, folder in folders.items() for path in _paths(folder)}
    records = [_record(name, trial, path, goal) for name, (trial, path) in found.items()]
    kept = checkpoints_to_keep(records, rules, smaller_is_better=goal.mode == "min")
    removed = [path for name, (trial, path) in found.items() if name not in kept and trial not in running]
    removed = [path for path in removed if path not in needed]
    for path in removed:
        with contextlib.suppress(FileNotFoundError):
            remove_checkpoint(Checkpoint(path, "", {}))
    return removed


def _paths(folder: Path) -> Iterator[Path]:
    for child in sorted(folder.iterdir()) if folder.is_dir() else []:
        if (child / MANIFEST_FILE).is_file() and not is_partial(child):
            yield child


def _record(name: str, trial: int, path: Path, goal: Goal) -> CheckpointRecord:
    """Describes a checkpoint by its manifest; its files are compared with their digests when it is used."""
    try:
        told = read_manifest(path)["metadata"]
    except CheckpointError:
        return CheckpointRecord(name, trial, 0, None)
    value = told["metrics"].get(goal.metric)
    return CheckpointRecord(name, trial, int(told["step"]), None if value is None else float(value))
