"""Pins and tracked versions: small JSON files in the table's own folder, which no VACUUM and no version touches.

A pin is a name for a version. A tracked version is one that a run has trained on or scored. Both protect the version's
files from `ImageTable.vacuum`, wherever the table is: on a disk or in an object store. The VACUUM of Spark and that of
Databricks do not know them.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from ...errors import (
    InvalidArgumentError,
    MissingDependencyError,
    NoSpaceError,
    StoreError,
    TableError,
    VersionNotFoundError,
)
from ...stores.data_files import remove_file
from ...tracking.deleted_runs import deleted_runs
from ...tracking.runs import without_password
from .notes import (
    PINS,
    TRACKED,
    Note,
    Options,
    folder_of,
    now,
    read_all,
    records_in,
    remove_all,
    since_of,
    time_of,
    write_record,
)
from .processes import is_running, this_process
from .table_lock import table_lock

logger = logging.getLogger(__name__)

_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_.-]{0,99}\Z")
_RESERVED = ("latest",)
# A process of another machine is taken for dead when it has not renewed its note for so long.
_SILENT = timedelta(days=1)
_RENEW_S = 600.0
# Runs that an error names.
_NAMED = 10


def pin(location: str, name: str, version: int, *, replace: bool = False, storage_options: Options = None) -> None:
    """Names a version.

    Args:
        location: The table's path or URI.
        name: Letters, digits, `_`, `.` and `-`, starting with a letter, so that it is never taken for a number.
        version: The version's number; the caller holds `no_other_pin` and has made sure that its files are there.
        replace: Whether a pin of that name may move.
        storage_options: Access to an object store.

    Raises:
        InvalidArgumentError: If the name is unfit, or already names another version.
    """
    check_pin_name(name)
    known = version_of_pin(location, name, storage_options)
    if known is not None and known != version and not replace:
        raise InvalidArgumentError(
            f"pin {name!r} of {location} already names version {known}; unpin it first, or choose another name"
        )
    write_record(location, PINS, name, {"name": name, "version": version, "created": now()}, storage_options)


def unpin(location: str, name: str, storage_options: Options = None) -> None:
    """Removes a pin.

    Raises:
        VersionNotFoundError: If there is none of that name.
    """
    check_pin_name(name)
    known = pins(location, storage_options)
    if name not in known:
        names = ", ".join(sorted(known)) or "none"
        raise VersionNotFoundError(f"{location} has no pin {name!r}; its pins: {names}")
    with writing_to(location), contextlib.suppress(FileNotFoundError):
        remove_file(f"{folder_of(location)}/{PINS}/{name}.json", storage_options)


def pins(location: str, storage_options: Options = None) -> dict[str, int]:
    """Versions by the names that pin them."""
    return {note.name: note.version for note in pin_notes(location, storage_options)}


def pin_notes(location: str, storage_options: Options = None) -> list[Note]:
    """The pins with their times."""
    records = read_all(location, PINS, storage_options).values()
    return [Note(int(record["version"]), record["name"], since_of(record)) for record in records]


def version_of_pin(location: str, name: str, storage_options: Options = None) -> int | None:
    """The version that a pin names, or None when there is no such pin."""
    if not _NAME.match(name):
        return None
    return pins(location, storage_options).get(name)


def track(
    location: str,
    version: int,
    run_id: str,
    storage_options: Options = None,
    *,
    while_running: bool = False,
    tracking_uri: str | None = None,
    since: datetime | None = None,
) -> None:
    """Notes that a run has read a version.

    Args:
        location: The table's path or URI.
        version: The version's number.
        run_id: The run.
        storage_options: Access to an object store.
        while_running: The run is at work in this process. Without `tracking_uri` the note counts only while the process
            lives; another machine assumes that until a day after the last write.
        tracking_uri: MLflow store of the run; the note counts until the run is deleted there, because a run that was
            killed can be resumed.
        since: When the run began; now by default.
    """
    with no_vacuum(location, storage_options) as require:
        _write_note(location, version, run_id, storage_options, while_running, tracking_uri, since)
        require()


def _write_note(
    location: str,
    version: int,
    run_id: str,
    storage_options: Options,
    while_running: bool,
    tracking_uri: str | None,
    since: datetime | None,
) -> None:
    written = now()
    began = written if since is None else since.isoformat(timespec="seconds")
    record: dict[str, Any] = {"version": version, "run_id": run_id, "created": began, "renewed": written}
    if tracking_uri is not None:
        record["tracking_uri"] = without_password(tracking_uri)
    if while_running:
        record["process"] = this_process()
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{version}-{run_id}")
    write_record(location, TRACKED, name, record, storage_options)


def untrack(location: str, run_id: str, storage_options: Options = None) -> int:
    """Forgets every version that a run has read; returns how many there were.

    Raises:
        VersionNotFoundError: If no version is tracked for it.
    """
    records = read_all(location, TRACKED, storage_options)
    with writing_to(location):
        mine = [file for file, record in records.items() if record["run_id"] == run_id]
        forgotten = remove_all(mine, storage_options)
    if not forgotten:
        known = sorted({str(record["run_id"]) for record in records.values()})
        names = ", ".join(known[:_NAMED]) + (f" and {len(known) - _NAMED} more" if len(known) > _NAMED else "")
        raise VersionNotFoundError(f"{location}: no version is tracked for run {run_id!r}; its runs: {names or 'none'}")
    return forgotten


def untrack_older(location: str, age: timedelta, storage_options: Options = None) -> int:
    """Forgets the versions that runs have read which began longer ago and are over; returns how many there were.

    Raises:
        InvalidArgumentError: If `age` is no length of time.
    """
    if not isinstance(age, timedelta) or age <= timedelta(0):
        raise InvalidArgumentError(f"older_than = {age!r}: give a timedelta above 0, as in timedelta(days=90)")
    before = datetime.now(timezone.utc) - age
    records = read_all(location, TRACKED, storage_options).items()
    over = [(file, since_of(record)) for file, record in records if "process" not in record or _has_ended(record)]
    old = [file for file, since in over if since is not None and since < before]
    with writing_to(location):
        return remove_all(old, storage_options)


def tracked_notes(location: str, storage_options: Options = None, *, asks_mlflow: bool = True) -> list[Note]:
    """The runs that protect versions, with the times at which they began.

    Removes the notes of runs that MLflow has deleted, and those of processes that were killed in a run without MLflow.

    Args:
        location: The table's path or URI.
        storage_options: Access to an object store.
        asks_mlflow: Whether to ask the runs' MLflow stores, which takes a request for each run.
    """
    records = read_all(location, TRACKED, storage_options)
    over = {file for file, record in records.items() if _is_over(record)}
    if asks_mlflow:
        over |= _of_deleted_runs({file: record for file, record in records.items() if file not in over})
    with contextlib.suppress(OSError):  # who may not write here reads the others' notes all the same
        remove_all(over, storage_options)
    kept = [record for file, record in records.items() if file not in over]
    return [Note(int(record["version"]), str(record["run_id"]), since_of(record)) for record in kept]


@contextlib.contextmanager
def tracking(
    location: str,
    version: int,
    run_id: str,
    *,
    kept_as: str | None = None,
    tracking_uri: str | None = None,
    resumable: Callable[[], bool] = lambda: False,
    storage_options: Options = None,
) -> Iterator[Callable[[], None]]:
    """Tracks a version while a run reads it and after that.

    If the body raises, the version stays tracked only if the run can be resumed. If this process is killed, it stays
    tracked for a run of MLflow, which may have a checkpoint. A table that can only be read here is read all the same,
    with a warning.

    Args:
        location: The table's path or URI.
        version: The version's number.
        run_id: The run.
        kept_as: Name to track the version under once the run has succeeded; its own by default. A version that is
            tracked under it already is left as it is.
        tracking_uri: MLflow store of the run, if it is one of MLflow.
        resumable: Whether the run can be resumed; called if the body raises.
        storage_options: Access to an object store.

    Yields:
        A function to be called now and then by runs that may take days, from a machine that the one which runs VACUUM
            cannot see.
    """
    since = datetime.now(timezone.utc)
    note = functools.partial(track, location, version, storage_options=storage_options, tracking_uri=tracking_uri)
    try:
        kept = kept_as is not None and _is_tracked(location, version, kept_as, storage_options)
        if not kept:
            note(run_id, while_running=True, since=since)
    except (OSError, MissingDependencyError, InvalidArgumentError) as error:  # the last where the store is none we know
        logger.warning(
            "%s cannot be written (%s), so VACUUM may remove files of version %d while they are read; its owner can "
            "pin it",
            location,
            error,
            version,
        )
        kept = True
    if kept:
        yield lambda: None
        return
    written = time.monotonic()

    def renew() -> None:
        nonlocal written
        if time.monotonic() - written >= _RENEW_S:
            written = time.monotonic()
            with contextlib.suppress(OSError, TableError):  # the next call tries again, long before the note is over
                # Without the lock: the note that is there protects the version, and a VACUUM may take its time.
                _write_note(location, version, run_id, storage_options, True, tracking_uri, since)

    try:
        yield renew
    except BaseException:
        with contextlib.suppress(OSError, TableError):  # the body's error is what matters
            if resumable():
                _write_note(location, version, run_id, storage_options, False, tracking_uri, since)
            else:
                _forget(location, version, run_id, storage_options)
        raise
    try:
        note(kept_as or run_id, since=since)
        if kept_as is not None:
            _forget(location, version, run_id, storage_options)
    except (OSError, TableError) as error:  # the version is tracked until this process ends
        logger.warning(
            "%s cannot be written any more (%s), so VACUUM may remove files of version %d; pin it to keep them",
            location,
            error,
            version,
        )


def _forget(location: str, version: int, run_id: str, storage_options: Options) -> None:
    records = read_all(location, TRACKED, storage_options).items()
    mine = [file for file, record in records if record["run_id"] == run_id and int(record["version"]) == version]
    remove_all(mine, storage_options)


def _of_deleted_runs(records: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Returns the files whose run MLflow has deleted; those of runs at work are not asked about."""
    runs_of: dict[str, dict[str, str]] = {}
    for file, record in records.items():
        if "tracking_uri" in record and ("process" not in record or _has_ended(record)):
            runs_of.setdefault(str(record["tracking_uri"]), {})[file] = str(record["run_id"])
    over: set[str] = set()
    for uri, run_of in runs_of.items():
        deleted = deleted_runs(uri, set(run_of.values()))
        over.update(file for file, run in run_of.items() if run in deleted)
    return over


def _is_over(record: Mapping[str, Any]) -> bool:
    """Returns whether a note was to count as long as its process lives, and that has ended."""
    return "tracking_uri" not in record and _has_ended(record)


def _has_ended(record: Mapping[str, Any]) -> bool:
    """Returns whether the process of a run at work has ended without finishing the run."""
    process = record.get("process")
    if not isinstance(process, dict):
        return False
    running = is_running(process)
    if running is not None:
        return not running
    written = time_of(record.get("renewed", record.get("created")))
    return written is not None and datetime.now(timezone.utc) - written > _SILENT


def _is_tracked(location: str, version: int, run_id: str, storage_options: Options) -> bool:
    records = records_in(location, TRACKED, storage_options).values()
    return any(record["version"] == version and record["run_id"] == run_id for record in records)


@contextlib.contextmanager
def no_new_pins(location: str, storage_options: Options = None) -> Iterator[Callable[[], None]]:
    """Keeps pins and tracked versions as they are while a VACUUM looks at them and removes files.

    Yields:
        A function that raises `TableConflictError` once they could change again; to be called before each removal.
    """
    with table_lock(folder_of(location), "vacuum", storage_options) as require:
        yield require


@contextlib.contextmanager
def no_vacuum(location: str, storage_options: Options = None) -> Iterator[Callable[[], None]]:
    """Waits until no VACUUM is at work, and keeps a new one waiting.

    Yields:
        A function that raises `TableConflictError` if one could have begun; to be called at the end.
    """
    with table_lock(folder_of(location), "read", storage_options) as require:
        yield require


@contextlib.contextmanager
def no_other_pin(location: str, storage_options: Options = None) -> Iterator[Callable[[], None]]:
    """As `no_vacuum`, and keeps others from giving a name at the same time."""
    with table_lock(folder_of(location), "pin", storage_options) as require:
        yield require


def check_pin_name(name: str) -> None:
    """Checks a pin's name.

    Raises:
        InvalidArgumentError: If it could be taken for a number, a timestamp or `latest`, or is unfit for a file name.
    """
    if not isinstance(name, str) or not _NAME.match(name) or name in _RESERVED:
        raise InvalidArgumentError(
            f"{name!r} is not a pin's name: letters, digits, _ . and -, starting with a letter or _, at most 100, "
            "and not 'latest'"
        )


@contextlib.contextmanager
def writing_to(location: str) -> Iterator[None]:
    """Turns the refusal to write in a table's folder into a typed error.

    Raises:
        InvalidArgumentError: If the folder cannot be written.
        NoSpaceError: If its disk is full.
        StoreError: If it is in an object store that cannot be reached or refuses.
    """
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        where = "" if error.filename is None else f" ({error.filename})"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpaceError(
                f"{location}: its disk has no space left for a small file{where}; free some, and try again"
            ) from error
        raise InvalidArgumentError(
            f"{location} cannot be written: {error.strerror or error}{where}; its owner can give you the right to, or "
            "copy the table"
        ) from error
