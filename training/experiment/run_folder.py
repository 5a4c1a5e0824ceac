"""The folders of runs' checkpoints, which the driver and rank 0 share: made, locked, and pruned by retention rules."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from ...errors import CheckpointError, InvalidArgumentError, RunNotResumableError
from ...locations import absolute_path, has_scheme
from ...stores.data_files import local_form
from ...tracking.runs import RunReference
from ..checkpoints.checkpoint import Checkpoint, checkpoint_folders, remove_checkpoint, sweep
from ..checkpoints.manifests import read_manifest
from ..checkpoints.retention import CheckpointRecord, Retention, checkpoints_to_keep
from ..segments.checks import PROBE_FILE
from ..trials.metrics import Goal


def checkpoint_root(path: str) -> Path:
    """Returns the folder that holds the folders of runs."""
    place = absolute_path(path)
    if place.startswith("dbfs:"):
        raise InvalidArgumentError(f"checkpoint_storage.path is {place}; give its mount: {local_form(place)}")
    if has_scheme(place):
        raise InvalidArgumentError(
            f"checkpoint_storage.path is {place!r}; it must be a folder that the driver and rank 0 both mount (NFS, "
            "/dbfs, /Volumes); the run's artifacts may be in an object store"
        )
    return Path(place)


@contextlib.contextmanager
def resuming(root: Path, run_id: str) -> Iterator[None]:
    """Lets one process at a time resume a run: its status in MLflow is read and written in two steps."""
    path = root / f".{run_id}.resuming"
    with contextlib.ExitStack() as stack:
        try:
            root.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.open("w"))  # not "a": mounted object stores cannot append
        except OSError as error:
            raise CheckpointError(_unwritable(root, error)) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A process that has just ended removed the locked file.
            free = path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino
        except BlockingIOError:
            free = False
        except OSError:  # a file system without locks: only the run's status decides
            free = True
        if not free:
            raise RunNotResumableError(f"run {run_id} is being resumed by another process; wait until it has ended")
        stack.callback(path.unlink, missing_ok=True)
        yield


@contextlib.contextmanager
def run_folder(root: Path, run: RunReference, *, stays: bool = False) -> Iterator[Path]:
    """Makes the run's checkpoint folder; at the end one without checkpoints is removed, unless it `stays`."""
    folder = root / run.run_id
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / PROBE_FILE).write_text(run.run_id, encoding="utf-8")
    except OSError as error:
        raise CheckpointError(_unwritable(root, error)) from error
    try:
        yield folder
    finally:
        # Every rank has ended, so half-written checkpoints stay incomplete.
        (folder / PROBE_FILE).unlink(missing_ok=True)
        sweep(folder)
        if not stays:
            with contextlib.suppress(OSError):  # not empty: it holds checkpoints
                folder.rmdir()


def require_writable(root: Path) -> None:
    """Checks that run folders can be made, and leaves nothing there."""
    place = next(place for place in (root, *root.parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise CheckpointError(_unwritable(root, error)) from error


def _unwritable(root: Path, error: OSError) -> str:
    return f"checkpoint_storage.path {root} cannot be written ({error}); give another folder"


def prune(
    folders: Mapping[int, Path],
    rules: Retention,
    goal: Goal,
    *,
    running: Collection[int] = (),
    needed: Collection[Path] = (),
) -> None:
    """Removes the checkpoints of ended trials that no rule keeps."""
    found = {
        f"{trial}/{path.name}": (trial, path)
        for trial, folder in folders.items()
        for path in checkpoint_folders(folder)
    }
    records = [_record(name, trial, path, goal) for name, (trial, path) in found.items()]
    kept = checkpoints_to_keep(records, rules, smaller_is_better=goal.mode == "min")
    for name, (trial, path) in found.items():
        if name not in kept and trial not in running and path not in needed:
            with contextlib.suppress(FileNotFoundError):
                remove_checkpoint(Checkpoint(path, "", {}))


def _record(name: str, trial: int, path: Path, goal: Goal) -> CheckpointRecord:
    """Describes a checkpoint by its manifest; its files are compared with their digests when it is used."""
    try:
        told = read_manifest(path)["metadata"]
    except CheckpointError:
        return CheckpointRecord(name, trial, 0, None)
    return CheckpointRecord(name, trial, int(told["step"]), goal.found_in(told["metrics"]))
