"""VACUUM that asks first: removes files that no version within the retention, no pin and no run needs."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePosixPath

from ...errors import (
    InvalidArgumentError,
    LakelensError,
    TableError,
    VersionNotFoundError,
    VersionProtectedError,
    VersionUnreadableError,
)
from ...ledger.ledger import Ledger, Use
from ...ledger.protection import check_pin_name, has_ended, is_lost, set_pin, vacuuming
from ...ledger.store import change, read
from ...log.data_files import remove_files, require_files
from ...log.opening import open_table
from ...log.snapshot import Snapshot, open_snapshot
from ...options import whole_number
from ...results import ReadableResult
from ...stores.data_files import exists
from ...table import Table
from ...tracking.run_listing import deleted_runs


@dataclass(frozen=True)
class Protection:
    """What keeps `vacuum` off the files of a version."""

    version: int  # Its number
    by: str  # `pin <name>` or `run <id>`
    since: datetime  # When the pin was set, or the run began


def protections(table: Table) -> list[Protection]:
    """Lists what protects which version since when: by version, pins first."""
    ledger = without_lost_uses(table)
    found = [Protection(one.version, f"pin {one.name}", one.since) for one in ledger.pins]
    found += [Protection(one.version, f"run {one.run_id}", one.since) for one in ledger.uses]
    return sorted(found, key=lambda one: (one.version, one.by))


def without_lost_uses(table: Table) -> Ledger:
    """Returns the ledger without uses of lost processes and deleted runs, and removes them there if it can."""
    ledger = read(table)
    deleted = _of_deleted_runs(ledger.uses)

    def is_over(use: Use) -> bool:
        return is_lost(use) or (use.run_id in deleted and has_ended(use))

    kept = ledger.without_uses(is_over)
    if kept != ledger:
        with contextlib.suppress(LakelensError):  # who may not write here reads the others' uses all the same
            return change(table, lambda now: now.without_uses(is_over))
    return kept


def _of_deleted_runs(uses: Collection[Use]) -> set[str]:
    """Returns the runs that MLflow has deleted; those at work are not asked about."""
    runs: dict[str, set[str]] = {}
    for use in uses:
        if use.tracking_uri is not None and has_ended(use):
            runs.setdefault(use.tracking_uri, set()).add(use.run_id)
    return {run for uri, ids in runs.items() for run in deleted_runs(uri, ids)}


def pin_version(table: Table, name: str, *, replace: bool = False) -> int:
    """Names a version, which protects its files; returns its number. Waits for a VACUUM that may remove its files."""
    check_pin_name(name)
    snapshot = open_snapshot(table)
    set_pin(table, name, snapshot.version, lambda: require_files(snapshot), replace=replace)
    return snapshot.version


DEFAULT_RETENTION_HOURS = 168


@dataclass(frozen=True, repr=False)
class VacuumResult(ReadableResult):
    """The result of a VACUUM, or of a dry run."""

    files: tuple[str, ...]  # Paths relative to the table, sorted
    dry_run: bool  # Whether the files are still there
    # Protected versions whose files were left, with the pins and runs that protect them
    kept: dict[int, tuple[str, ...]]
    # Protected versions that the table's log can no longer rebuild, with the pins and runs that protect them: their
    # files are unknown, and nothing can read them
    unreadable: dict[int, tuple[str, ...]] = field(default_factory=dict)


def vacuum(
    table: Table,
    retention_hours: int | None = None,
    *,
    dry_run: bool = False,
    keep_protected: bool = False,
    allow_short_retention: bool = False,
) -> VacuumResult:
    """Removes data files that no version younger than the retention needs, and none that a protected version needs.

    Files outside the table's folder stay: a shallow clone's log names those of the table that it was cloned from.
    """
    _check_retention(retention_hours, allow_short_retention)
    latest = open_snapshot(table.at(None))
    latest.require_plain()  # the files of deletion vectors are not among those that are kept
    ledger = without_lost_uses(table)
    removable = _removable_files(latest, retention_hours)
    with contextlib.ExitStack() as working:
        require = None
        if not dry_run:
            ledger, require = working.enter_context(vacuuming(table, latest.version))
        protected = ledger.protected()
        files_by_version = {version: _files_of(table, version, by) for version, by in protected.items()}
        conflicting = {
            version: protected[version]
            for version, files in files_by_version.items()
            if files and files & removable.keys()
        }
        if conflicting and not keep_protected:
            named = "; ".join(f"version {version} ({', '.join(by)})" for version, by in conflicting.items())
            raise VersionProtectedError(
                f"{latest.location}: VACUUM would remove files of {named}. Unpin or untrack these versions, keep more "
                "hours, or leave their files with keep_protected=True (--keep-protected)"
            )
        kept = {location for version in conflicting for location in files_by_version[version] or ()}
        files = {location: path for location, path in removable.items() if location not in kept}
        if require is not None:
            remove_files(table, files, before_each=require)
    unreadable = {version: protected[version] for version, locations in files_by_version.items() if locations is None}
    return VacuumResult(tuple(sorted(files.values())), dry_run, conflicting, unreadable)


def _check_retention(retention_hours: int | None, allow_short: bool) -> None:
    if retention_hours is None:
        return
    if whole_number("retention_hours", retention_hours, 0) < DEFAULT_RETENTION_HOURS and not allow_short:
        raise InvalidArgumentError(
            f"retention_hours={retention_hours} is below {DEFAULT_RETENTION_HOURS}: files that a reader or writer "
            "needs right now could go; say allow_short_retention=True (--allow-short-retention) if no other "
            "process uses the table"
        )


def _removable_files(latest: Snapshot, retention_hours: int | None) -> dict[str, str]:
    """Lists the files that no version within the retention needs: their paths in the table by where they are."""
    opened = open_table(latest.table.at(None))
    # Not only what the log since its last checkpoint calls removed, but also what it does not know at all.
    listed = opened.vacuum(retention_hours, dry_run=True, enforce_retention_duration=False, full=True)
    active = {latest.table.file(path) for path in latest.files.paths}
    inside = [path for path in listed if _is_inside(path) and not _is_hidden(path, latest.partition_columns)]
    removable = {latest.table.file(path): path for path in inside}
    # delta-rs also lists what the log calls removed and an earlier VACUUM has taken.
    options = latest.table.storage_options
    return {place: path for place, path in removable.items() if place not in active and exists(place, options)}


def _is_inside(path: str) -> bool:
    pure = PurePosixPath(path)
    return ":" not in path.split("/", 1)[0] and not pure.is_absolute() and ".." not in pure.parts


def _is_hidden(path: str, partition_columns: tuple[str, ...]) -> bool:
    """Whether Delta ignores a path: a name that starts with `_` or `.`, unless it is a partition's folder."""
    partitions = tuple(f"{name}=" for name in partition_columns)
    return any(part.startswith(("_", ".")) and not part.startswith(partitions) for part in PurePosixPath(path).parts)


def _files_of(table: Table, version: int, protected_by: tuple[str, ...]) -> set[str] | None:
    """Where the files of a protected version are; None when the log has no longer the entries to rebuild it."""
    try:
        snapshot = open_snapshot(table.at(version))
        snapshot.require_plain()
    except VersionNotFoundError:
        return None
    except (TableError, OSError) as error:
        raise VersionUnreadableError(
            f"{table.path}: version {version} is protected ({', '.join(protected_by)}) and cannot be opened, so its "
            f"files are not known; nothing was removed. Start VACUUM again once it can be read; or unpin or untrack "
            f"it, which gives its files up. Why: {error}"
        ) from error
    return {table.file(path) for path in snapshot.files.paths}
