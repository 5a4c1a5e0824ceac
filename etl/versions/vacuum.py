"""VACUUM that asks first: which files no version within the retention needs, and none that is pinned or was used."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from ...errors import (
    InvalidArgumentError,
    TableError,
    VersionNotFoundError,
    VersionProtectedError,
    VersionUnreadableError,
)
from ...ledger.vacuum_lease import vacuuming
from ...log.data_files import remove_files
from ...log.opening import open_table
from ...log.snapshot import Snapshot, open_snapshot
from ...options import whole_number
from ...results import ReadableResult
from ...stores.data_files import exists
from ...table import Table
from .protection import without_lost_uses

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

    Also files of that age which no version ever had, as a killed writer leaves them. A version is protected by a pin,
    or because a run has trained on it or scored it. Files outside the table's folder are never touched: a shallow
    clone's log names those of the table that it was cloned from. That table does not know of its clones; pin the
    version that was cloned.
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
    removable = {
        latest.table.file(path): path
        for path in listed
        if _is_inside(path) and not _is_hidden(path, latest.partition_columns)
    }
    # delta-rs also lists what the log calls removed and an earlier VACUUM has taken.
    options = latest.table.storage_options
    inactive = {location: path for location, path in removable.items() if location not in active}
    return {location: path for location, path in inactive.items() if exists(location, options)}


def _is_inside(path: str) -> bool:
    pure = PurePosixPath(path)
    return ":" not in path.split("/", 1)[0] and not pure.is_absolute() and ".." not in pure.parts


def _is_hidden(path: str, partition_columns: tuple[str, ...]) -> bool:
    """Whether Delta ignores a path: a name that starts with `_` or `.`, unless it is a partition's folder."""
    return any(
        part.startswith(("_", ".")) and not part.startswith(tuple(f"{name}=" for name in partition_columns))
        for part in PurePosixPath(path).parts
    )


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
