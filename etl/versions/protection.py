"""What protects the files of a version: pins, and the runs that have read it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from ..log.data_files import require_files
from ..log.snapshot import open_snapshot
from ..pins import pins


def protected_versions(location: str, storage_options: Mapping[str, str] | None = None) -> dict[int, tuple[str, ...]]:
    """Names what protects each version: `pin <name>` and `run <id>`."""
    reasons: dict[int, list[str]] = {}
    for name, version in sorted(pins.pins(location, storage_options).items()):
        reasons.setdefault(version, []).append(f"pin {name}")
    for version, runs in sorted(pins.tracked(location, storage_options).items()):
        reasons.setdefault(version, []).extend(f"run {run}" for run in runs)
    return {version: tuple(reasons[version]) for version in sorted(reasons)}


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
