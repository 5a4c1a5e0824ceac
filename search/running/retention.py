"""Which checkpoints a search keeps: the rules of its trials, and the best over all trials."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from ...errors import CheckpointError
from ...training.checkpoints.checkpoint import Checkpoint, remove_checkpoint
from ...training.checkpoints.manifests import is_partial, read_manifest
from ...training.checkpoints.retention import CheckpointRecord, Retention, checkpoints_to_keep
from ...training.trials.metrics import Goal


def while_running(rules: Retention) -> Retention:
    """Gives the rules of a trial that may be continued: its latest checkpoint always stays."""
    return replace(rules, save_trial_latest=max(1, rules.save_trial_latest))


def prune(folders: Mapping[int, Path], running: Collection[int], rules: Retention, goal: Goal) -> list[Path]:
    """Removes the checkpoints that no rule keeps.

    Args:
        folders: The folder of each trial, by its number.
        running: Trials that hold slots; their checkpoints stay.
        rules: The rules.
        goal: The metric that decides, and its direction.

    Returns:
        What was removed.
    """
    found = {f"{trial}/{path.name}": (trial, path) for trial, folder in folders.items() for path in _paths(folder)}
    records = [_record(name, trial, path, goal) for name, (trial, path) in found.items()]
    kept = checkpoints_to_keep(records, rules, smaller_is_better=goal.mode == "min")
    removed = [path for name, (trial, path) in found.items() if name not in kept and trial not in running]
    for path in removed:
        with contextlib.suppress(FileNotFoundError):
            remove_checkpoint(Checkpoint(path, "", {}))
    return removed


def _paths(folder: Path) -> Iterator[Path]:
    for child in sorted(folder.iterdir()) if folder.is_dir() else []:
        if child.is_dir() and not is_partial(child):
            yield child


def _record(name: str, trial: int, path: Path, goal: Goal) -> CheckpointRecord:
    """Describes a checkpoint by its manifest; its files are compared with their digests when it is used."""
    try:
        told = read_manifest(path)["metadata"]
    except CheckpointError:
        return CheckpointRecord(name, trial, 0, None)
    value = told["metrics"].get(goal.metric)
    return CheckpointRecord(name, trial, int(told["step"]), None if value is None else float(value))
