"""What protects the files of a version: pins, and the runs that have read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ..log.data_files import require_files
from ..log.snapshot import open_snapshot
from ..pins import pins


@dataclass(frozen=True)
class Protection:
    """What keeps `vacuum` off the files of a version.

    Attributes:
        version: Its number.
        by: `pin <name>` or `run <id>`.
        since: When the pin was set, or the run began; None where its file does not tell.
    """

    version: int
    by: str
    since: datetime | None


def protections(
    location: str, storage_options: Mapping[str, str] | None = None, *, asks_mlflow: bool = True
) -> list[Protection]:
    """Lists what protects which version since when: by version, pins first.

    A run whose process ended without finishing it protects nothing, nor does one that MLflow has deleted, where it is
    asked.
    """
    notes = {
        "pin": pins.pin_notes(location, storage_options),
        "run": pins.tracked_notes(location, storage_options, asks_mlflow=asks_mlflow),
    }
    found = [Protection(note.version, f"{kind} {note.name}", note.since) for kind in notes for note in notes[kind]]
    return sorted(found, key=lambda one: (one.version, one.by))


def protected_versions(
    location: str, storage_options: Mapping[str, str] | None = None, *, asks_mlflow: bool = True
) -> dict[int, tuple[str, ...]]:
    """Names what protects each version: `pin <name>` and `run <id>`."""
    reasons: dict[int, list[str]] = {}
    for one in protections(location, storage_options, asks_mlflow=asks_mlflow):
        reasons.setdefault(one.version, []).append(one.by)
    return {version: tuple(by) for version, by in reasons.items()}


def pin_version(
    location: str | Path,
    name: str,
    version: int | str | datetime | None = None,
    *,
    replace: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> int:
    """Names a version, which protects its files; returns its number.

    Waits while a VACUUM of lakelens is at work, so that the files which it finds are there to stay.

    Args:
        location: Path or URI of the table.
        name: Letters, digits, `_`, `.` and `-`, starting with a letter or `_`.
        version: Number, time or another pin; None is the latest.
        replace: Whether a pin of that name may move.
        storage_options: Access to an object store.

    Raises:
        InvalidArgumentError: If the name is unfit, or already names another version; or if the table's folder cannot be
            written.
        VersionNotFoundError: If the table has no such version.
        VersionFilesMissingError: If files of the version are gone: a pin could not bring them back.
        TableConflictError: If the object store could not be reached for so long that a VACUUM may have begun.
    """
    pins.check_pin_name(name)
    snapshot = open_snapshot(location, version, storage_options)
    with pins.writing_to(snapshot.location), pins.no_other_pin(snapshot.location, storage_options) as require:
        require_files(snapshot, storage_options)
        pins.pin(snapshot.location, name, snapshot.version, replace=replace, storage_options=storage_options)
        require()
    return snapshot.version
