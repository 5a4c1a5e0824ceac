"""Pins and tracked versions: small JSON files in the table's own folder, which no VACUUM and no version touches.

A pin is a name for a version. A tracked version is one that a run has trained on or scored. Both protect the version's
files from `ImageTable.vacuum`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..errors import InvalidArgumentError, TableError, VersionNotFoundError
from ..locations import absolute, has_scheme

logger = logging.getLogger(__name__)

_FOLDER = "_lakelens"
_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_.-]{0,99}\Z")
_RESERVED = ("latest",)


def pin(location: str, name: str, version: int, *, replace: bool = False) -> None:
    """Names a version.

    Args:
        location: The table's path.
        name: Letters, digits, `_`, `.` and `-`, starting with a letter, so that it is never taken for a number.
        version: The version's number; the caller has made sure that it exists.
        replace: Whether a pin of that name may move.

    Raises:
        InvalidArgumentError: If the name is unfit, or already names another version.
    """
    check_pin_name(name)
    with no_vacuum(location):
        known = version_of_pin(location, name)
        if known is not None and known != version and not replace:
            raise InvalidArgumentError(
                f"pin {name!r} of {location} already names version {known}; unpin it first, or choose another name"
            )
        _write(location, "pins", name, {"name": name, "version": version, "created": _now()})


def unpin(location: str, name: str) -> None:
    """Removes a pin.

    Raises:
        VersionNotFoundError: If there is none of that name.
    """
    check_pin_name(name)
    file = _folder(location) / "pins" / f"{name}.json"
    if not file.exists():
        names = ", ".join(sorted(pins(location))) or "none"
        raise VersionNotFoundError(f"{location} has no pin {name!r}; its pins: {names}")
    with writing_to(location):
        file.unlink(missing_ok=True)


def pins(location: str) -> dict[str, int]:
    """Versions by the names that pin them."""
    return {record["name"]: int(record["version"]) for record in _read_all(location, "pins")}


def version_of_pin(location: str, name: str) -> int | None:
    """The version that a pin names, or None when there is no such pin."""
    if not _NAME.match(name):
        return None
    return pins(location).get(name)


def track(location: str, version: int, run_id: str) -> None:
    """Notes that a run has read a version."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{version}-{run_id}")
    with no_vacuum(location):
        _write(location, "tracked", name, {"version": version, "run_id": run_id, "created": _now()})


def untrack(location: str, run_id: str) -> int:
    """Forgets every version that a run has read; returns how many there were."""
    folder = _folder(location) / "tracked"
    forgotten = 0
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        with contextlib.suppress(FileNotFoundError):  # taken away between listing and reading
            if _record_of(path)["run_id"] == run_id:
                path.unlink()
                forgotten += 1
    return forgotten


def tracked(location: str) -> dict[int, list[str]]:
    """Run ids by the version that they have read."""
    runs: dict[int, list[str]] = {}
    for record in _read_all(location, "tracked"):
        runs.setdefault(int(record["version"]), []).append(str(record["run_id"]))
    return runs


@contextlib.contextmanager
def tracking(location: str, version: int, run_id: str, *, kept_as: str | None = None) -> Iterator[None]:
    """Tracks a version while a run reads it and after that; no longer if the body raises.

    A table that can only be read here is read all the same, with a warning.

    Args:
        location: The table's path.
        version: The version's number.
        run_id: The run.
        kept_as: Name to track the version under once the run has succeeded; its own by default.
    """
    try:
        track(location, version, run_id)
    except OSError as error:
        logger.warning(
            "%s cannot be written (%s), so VACUUM may remove files of version %d while they are read; its owner can "
            "pin it",
            location,
            error,
            version,
        )
        yield
        return
    try:
        yield
    except BaseException:
        untrack(location, run_id)
        raise
    if kept_as is not None:
        with contextlib.suppress(OSError):  # the version is tracked already, if under another name
            track(location, version, kept_as)
            untrack(location, run_id)


@contextlib.contextmanager
def no_new_pins(location: str) -> Iterator[None]:
    """Keeps pins and tracked versions as they are while a VACUUM looks at them and removes files."""
    with _lock(location, exclusive=True):
        yield


@contextlib.contextmanager
def no_vacuum(location: str) -> Iterator[None]:
    """Waits until no VACUUM is at work, and keeps a new one waiting."""
    with _lock(location, exclusive=False):
        yield


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


def _folder(location: str) -> Path:
    place = absolute(location)
    if has_scheme(place):
        raise InvalidArgumentError(
            f"pins live in the table's folder, and {location} is not a path that can be written here"
        )
    return Path(place) / _FOLDER


@contextlib.contextmanager
def _lock(location: str, *, exclusive: bool) -> Iterator[None]:
    """Holds the lock of a table's pins; the kernel lets go of it when a process dies.

    Tables in an object store have no pins, and some file systems no locks.
    """
    if has_scheme(absolute(location)):
        yield
        return
    folder = _folder(location)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield


@contextlib.contextmanager
def writing_to(location: str) -> Iterator[None]:
    """Turns the operating system's refusal to write in a table's folder into a typed error.

    Raises:
        InvalidArgumentError: If the folder cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise InvalidArgumentError(
            f"{location} cannot be written: {error.strerror or error} ({error.filename}); its owner can give you the "
            "right to, or copy the table"
        ) from error


def _write(location: str, kind: str, name: str, record: dict[str, Any]) -> None:
    folder = _folder(location) / kind
    folder.mkdir(parents=True, exist_ok=True)
    # A reader sees the whole file or none.
    temporary = folder / f".{name}.{uuid.uuid4().hex}"
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(record, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(folder / f"{name}.json")
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


def _read_all(location: str, kind: str) -> list[dict[str, Any]]:
    if has_scheme(absolute(location)):
        return []
    folder = _folder(location) / kind
    if not folder.is_dir():
        return []
    records = []
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(FileNotFoundError):  # taken away between listing and reading
            records.append(_record_of(path))
    return records


def _record_of(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        int(record["version"]), record["name" if path.parent.name == "pins" else "run_id"]
    except (ValueError, KeyError, TypeError) as error:
        raise TableError(
            f"{path} is not the pin or tracked version that lakelens wrote ({error!r}); what it protects cannot be "
            "told. Delete the file, and pin the version again"
        ) from error
    return dict(record)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
