"""Pins and tracked versions: small JSON files in the table's own folder, which no VACUUM and no version touches.

A pin is a name for a version. A tracked version is one that a run has trained on or scored. Both protect the version's
files from `ImageTable.vacuum`, wherever the table is: on a disk or in an object store.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from ...errors import (
    InvalidArgumentError,
    MissingDependencyError,
    NoSpaceError,
    StoreError,
    TableError,
    VersionNotFoundError,
)
from ...locations import absolute
from ...stores.data_files import local_form, names_in, read_bytes, remove_file, write_bytes
from .processes import is_running, this_process
from .table_lock import table_lock

logger = logging.getLogger(__name__)

_FOLDER = "_lakelens"
_PINS, _TRACKED = "pins", "tracked"

Options = Mapping[str, str] | None
_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_.-]{0,99}\Z")
_RECORD = re.compile(r"^[^.].*\.json\Z")
_RESERVED = ("latest",)
# A process of another machine is taken for dead when it has not renewed its note for so long.
_SILENT = timedelta(days=1)
_RENEW_S = 600.0


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
    _write(location, _PINS, name, {"name": name, "version": version, "created": _now()}, storage_options)


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
        remove_file(f"{_folder(location)}/{_PINS}/{name}.json", storage_options)


def pins(location: str, storage_options: Options = None) -> dict[str, int]:
    """Versions by the names that pin them."""
    return {record["name"]: int(record["version"]) for record in _read_all(location, _PINS, storage_options).values()}


def version_of_pin(location: str, name: str, storage_options: Options = None) -> int | None:
    """The version that a pin names, or None when there is no such pin."""
    if not _NAME.match(name):
        return None
    return pins(location, storage_options).get(name)


def track(
    location: str, version: int, run_id: str, storage_options: Options = None, *, while_running: bool = False
) -> None:
    """Notes that a run has read a version.

    Args:
        location: The table's path or URI.
        version: The version's number.
        run_id: The run.
        storage_options: Access to an object store.
        while_running: The note counts as long as this process lives only. Where other machines look at it, it counts
            until a day after it was written last.
    """
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{version}-{run_id}")
    with no_vacuum(location, storage_options) as require:
        record = {"version": version, "run_id": run_id, "created": _now()}
        if while_running:
            record["process"] = this_process()
        _write(location, _TRACKED, name, record, storage_options)
        require()


def untrack(location: str, run_id: str, storage_options: Options = None) -> int:
    """Forgets every version that a run has read; returns how many there were."""
    forgotten = 0
    for file, record in _read_all(location, _TRACKED, storage_options).items():
        if record["run_id"] == run_id:
            with contextlib.suppress(FileNotFoundError):  # taken away between listing and removing
                remove_file(file, storage_options)
                forgotten += 1
    return forgotten


def tracked(location: str, storage_options: Options = None) -> dict[int, list[str]]:
    """Run ids by the version that they have read; notes of processes that have ended are removed."""
    runs: dict[int, list[str]] = {}
    for file, record in _read_all(location, _TRACKED, storage_options).items():
        if _is_over(record):
            with contextlib.suppress(OSError):  # who may not write here reads the others' notes all the same
                remove_file(file, storage_options)
            continue
        runs.setdefault(int(record["version"]), []).append(str(record["run_id"]))
    return runs


@contextlib.contextmanager
def tracking(
    location: str, version: int, run_id: str, *, kept_as: str | None = None, storage_options: Options = None
) -> Iterator[Callable[[], None]]:
    """Tracks a version while a run reads it and after that; no longer if the body raises.

    A table that can only be read here is read all the same, with a warning. With `kept_as`, the version is also tracked
    no longer if this process is killed before the body has ended.

    Args:
        location: The table's path or URI.
        version: The version's number.
        run_id: The run.
        kept_as: Name to track the version under once the run has succeeded; its own by default. A version that is
            tracked under it already is left as it is.
        storage_options: Access to an object store.

    Yields:
        A function to be called now and then by runs with `kept_as` that may take days, from a machine that the one
            which runs VACUUM cannot see.
    """
    try:
        kept = kept_as is not None and _is_tracked(location, version, kept_as, storage_options)
        if not kept:
            track(location, version, run_id, storage_options, while_running=kept_as is not None)
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
        if kept_as is not None and time.monotonic() - written >= _RENEW_S:
            written = time.monotonic()
            with contextlib.suppress(OSError, TableError):  # the next call tries again, long before the note is over
                track(location, version, run_id, storage_options, while_running=True)

    try:
        yield renew
    except BaseException:
        with contextlib.suppress(OSError, TableError):  # the body's error is what matters
            untrack(location, run_id, storage_options)
        raise
    if kept_as is not None:
        with contextlib.suppress(OSError, TableError):  # the version is tracked already, if under another name
            track(location, version, kept_as, storage_options)
            untrack(location, run_id, storage_options)


def _is_over(record: Mapping[str, Any]) -> bool:
    """Returns whether a note was to count as long as its process lives, and that has ended."""
    process = record.get("process")
    if not isinstance(process, dict):
        return False
    running = is_running(process)
    if running is not None:
        return not running
    try:
        return datetime.now(timezone.utc) - datetime.fromisoformat(str(record.get("created"))) > _SILENT
    except (ValueError, TypeError):  # a time that lakelens did not write
        return False


def _is_tracked(location: str, version: int, run_id: str, storage_options: Options) -> bool:
    records = _records(location, _TRACKED, storage_options).values()
    return any(record["version"] == version and record["run_id"] == run_id for record in records)


@contextlib.contextmanager
def no_new_pins(location: str, storage_options: Options = None) -> Iterator[Callable[[], None]]:
    """Keeps pins and tracked versions as they are while a VACUUM looks at them and removes files.

    Yields:
        A function that raises `TableConflictError` once they could change again; to be called before each removal.
    """
    with table_lock(_folder(location), "vacuum", storage_options) as require:
        yield require


@contextlib.contextmanager
def no_vacuum(location: str, storage_options: Options = None) -> Iterator[Callable[[], None]]:
    """Waits until no VACUUM is at work, and keeps a new one waiting.

    Yields:
        A function that raises `TableConflictError` if one could have begun; to be called at the end.
    """
    with table_lock(_folder(location), "read", storage_options) as require:
        yield require


@contextlib.contextmanager
def no_other_pin(location: str, storage_options: Options = None) -> Iterator[Callable[[], None]]:
    """As `no_vacuum`, and keeps others from giving a name at the same time."""
    with table_lock(_folder(location), "pin", storage_options) as require:
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


def _folder(location: str) -> str:
    return f"{absolute(location).rstrip('/')}/{_FOLDER}"


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


def _write(location: str, kind: str, name: str, record: dict[str, Any], storage_options: Options) -> None:
    folder = f"{_folder(location)}/{kind}"
    local = local_form(folder)
    if local is not None:  # the table's own folder is there, or the table is gone
        Path(local).parent.mkdir(exist_ok=True)
        Path(local).mkdir(exist_ok=True)
    write_bytes(f"{folder}/{name}.json", json.dumps(record).encode(), storage_options)


def _read_all(location: str, kind: str, storage_options: Options) -> dict[str, dict[str, Any]]:
    """Reads the records of a kind, by their files.

    Raises:
        TableError: If one is damaged, or the store does not give them: what they protect cannot be told then.
    """
    try:
        return _records(location, kind, storage_options)
    except OSError as error:
        raise TableError(
            f"{_folder(location)}/{kind} cannot be read ({error}), so that nobody can tell which versions are "
            "protected; give access to it, in storage_options or the environment"
        ) from error


def _records(location: str, kind: str, storage_options: Options) -> dict[str, dict[str, Any]]:
    folder = f"{_folder(location)}/{kind}"
    records = {}
    for name in sorted(name for name in names_in(folder, storage_options) if _RECORD.match(name)):
        with contextlib.suppress(FileNotFoundError):  # taken away between listing and reading
            file = f"{folder}/{name}"
            records[file] = _record_of(file, kind, read_bytes(file, storage_options))
    return records


def _record_of(file: str, kind: str, content: bytes) -> dict[str, Any]:
    try:
        record = json.loads(content)
        int(record["version"]), record["name" if kind == _PINS else "run_id"]
    except (ValueError, KeyError, TypeError) as error:
        raise TableError(
            f"{file} is not the pin or tracked version that lakelens wrote ({error!r}); what it protects cannot be "
            "told. Delete the file, and pin the version again"
        ) from error
    return dict(record)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
