"""The JSON files that say what protects a version: one for each pin and for each run, in the table's own folder."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import TableError
from ...locations import absolute
from ...stores.data_files import local_form, names_in, read_bytes, remove_file, write_bytes

PINS, TRACKED = "pins", "tracked"

Options = Mapping[str, str] | None

_FOLDER = "_lakelens"
_RECORD = re.compile(r"^[^.].*\.json\Z")


class Note(NamedTuple):
    """What protects a version.

    Attributes:
        version: Its number.
        name: The pin, or the run.
        since: When the pin was set, or the run began; None where the file does not tell.
    """

    version: int
    name: str
    since: datetime | None


def folder_of(location: str) -> str:
    """The folder of what lakelens keeps beside a table's data."""
    return f"{absolute(location).rstrip('/')}/{_FOLDER}"


def write_record(location: str, kind: str, name: str, record: dict[str, Any], storage_options: Options) -> None:
    """Writes a record of a kind, whole or not at all."""
    folder = f"{folder_of(location)}/{kind}"
    local = local_form(folder)
    if local is not None:  # the table's own folder is there, or the table is gone
        Path(local).parent.mkdir(exist_ok=True)
        Path(local).mkdir(exist_ok=True)
    write_bytes(f"{folder}/{name}.json", json.dumps(record).encode(), storage_options)


def read_all(location: str, kind: str, storage_options: Options) -> dict[str, dict[str, Any]]:
    """Reads the records of a kind, by their files.

    Raises:
        TableError: If one is damaged, or the store does not give them: what they protect cannot be told then.
    """
    try:
        return records_in(location, kind, storage_options)
    except OSError as error:
        raise TableError(
            f"{folder_of(location)}/{kind} cannot be read ({error}), so that nobody can tell which versions are "
            "protected; give access to it, in storage_options or the environment"
        ) from error


def records_in(location: str, kind: str, storage_options: Options) -> dict[str, dict[str, Any]]:
    """As `read_all`, with the store's own errors."""
    folder = f"{folder_of(location)}/{kind}"
    records = {}
    for name in sorted(name for name in names_in(folder, storage_options) if _RECORD.match(name)):
        with contextlib.suppress(FileNotFoundError):  # taken away between listing and reading
            file = f"{folder}/{name}"
            records[file] = _record_of(file, kind, read_bytes(file, storage_options))
    return records


def _record_of(file: str, kind: str, content: bytes) -> dict[str, Any]:
    try:
        record = json.loads(content)
        int(record["version"]), record["name" if kind == PINS else "run_id"]
    except (ValueError, KeyError, TypeError) as error:
        raise TableError(
            f"{file} is not the pin or tracked version that lakelens wrote ({error!r}); what it protects cannot be "
            "told. Delete the file, and pin the version again"
        ) from error
    return dict(record)


def remove_all(files: Iterable[str], storage_options: Options) -> int:
    """Removes notes; returns how many were still there."""
    removed = 0
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # taken away between listing and removing
            remove_file(file, storage_options)
            removed += 1
    return removed


def since_of(record: Mapping[str, Any]) -> datetime | None:
    """When a pin was set, or a run began."""
    return time_of(record.get("created"))


def time_of(text: object) -> datetime | None:
    """Reads a time with a zone; None for what lakelens did not write."""
    try:
        when = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return None if when.tzinfo is None else when


def now() -> str:
    """The time as records have it: in UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
