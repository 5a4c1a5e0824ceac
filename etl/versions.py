"""What a table's versions hold, how two differ, and which files a VACUUM may take; from the log, without a JVM."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import unquote

from ..errors import InvalidArgumentError, TableError, VersionNotFoundError, VersionProtectedError
from ..locations import has_scheme
from . import pins, schema
from .profile_scan import open_parquet
from .snapshot import Snapshot, locate, log_of, open_snapshot

DEFAULT_RETENTION_HOURS = 168
_NO_CLASS = "(no class)"
_BATCH_ROWS = 65_536


@dataclass(frozen=True)
class VersionInfo:
    """One version of a table.

    Attributes:
        version: Its number.
        timestamp: When it was committed.
        operation: What Delta calls the commit, such as WRITE.
        rows: Its rows; None when its files are gone.
        class_counts: Rows by class name, sorted by name; None when its files are gone or it has no classes.
        batch_id: The ingest's mark; None for a commit that is none.
        source: What was ingested; None likewise.
        user: Who ingested; None likewise.
    """

    version: int
    timestamp: datetime
    operation: str
    rows: int | None
    class_counts: dict[str, int] | None
    batch_id: str | None
    source: str | None
    user: str | None


@dataclass(frozen=True)
class VersionDiff:
    """How a second version differs from a first, in rows by class name; rows are known by path.

    Attributes:
        first: Number of the first version.
        second: Number of the second version.
        added: Rows whose path only the second has.
        removed: Rows whose path only the first has.
        changed: Rows that both have, with other content or another class; by the second's class.
    """

    first: int
    second: int
    added: dict[str, int]
    removed: dict[str, int]
    changed: dict[str, int]


@dataclass(frozen=True)
class VacuumResult:
    """What a VACUUM has taken, or would take.

    Attributes:
        files: Paths relative to the table.
        dry_run: Whether the files are still there.
        kept: Protected versions whose files were left, with the pins and runs that protect them.
    """

    files: tuple[str, ...]
    dry_run: bool
    kept: dict[int, tuple[str, ...]]


class _Counts:
    """Rows by class of data files, each file read once; files never change."""

    def __init__(self, storage_options: Mapping[str, str] | None) -> None:
        self._options = storage_options
        self._known: dict[str, Counter[str]] = {}

    def of(self, snapshot: Snapshot) -> dict[str, int] | None:
        if schema.LABEL_NAME not in snapshot.schema:
            return None
        total: Counter[str] = Counter()
        for file, path in enumerate(snapshot.files.paths):
            if path not in self._known:
                self._known[path] = self._count(snapshot, file)
            total += self._known[path]
        return dict(sorted(total.items()))

    def _count(self, snapshot: Snapshot, file: int) -> Counter[str]:
        counts: Counter[str] = Counter()
        with open_parquet(snapshot, file, self._options) as parquet:
            for batch in parquet.iter_batches(_BATCH_ROWS, columns=[schema.LABEL_NAME]):
                for entry in batch.column(0).value_counts().to_pylist():
                    counts[entry["values"] or _NO_CLASS] += entry["counts"]
        return counts


def history(location: str | Path, storage_options: Mapping[str, str] | None = None) -> list[VersionInfo]:
    """Lists the versions that the log still knows, the newest first.

    Args:
        location: Path or URI of the table.
        storage_options: Access to an object store.

    Raises:
        NotADeltaTableError: If there is no table.
    """
    latest = open_snapshot(location, None, storage_options)
    counts = _Counts(storage_options)
    return [_info(latest.location, commit, counts, storage_options) for commit in _commits(latest, storage_options)]


def class_counts(snapshot: Snapshot, storage_options: Mapping[str, str] | None = None) -> dict[str, int] | None:
    """Counts a version's rows by class name, sorted by name; None for a table without classes."""
    return _Counts(storage_options).of(snapshot)


def diff(
    location: str | Path,
    first: int | str | datetime,
    second: int | str | datetime | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> VersionDiff:
    """Compares two versions; only files that one of them lacks are read, without their images.

    Holds path, content hash and class of the rows in those files in memory.

    Args:
        location: Path or URI of the table.
        first: Number, time or pin.
        second: The same, or None for the latest.
        storage_options: Access to an object store.

    Raises:
        VersionNotFoundError: If the table has no such version.
    """
    before, after = open_snapshot(location, first, storage_options), open_snapshot(location, second, storage_options)
    shared = set(before.files.paths) & set(after.files.paths)
    old, new = (_rows(snapshot, shared, storage_options) for snapshot in (before, after))
    return VersionDiff(
        before.version,
        after.version,
        _by_class(new[path][1] for path in new.keys() - old.keys()),
        _by_class(old[path][1] for path in old.keys() - new.keys()),
        _by_class(new[path][1] for path in new.keys() & old.keys() if new[path] != old[path]),
    )


def protected_versions(location: str) -> dict[int, tuple[str, ...]]:
    """Names what protects each version: `pin <name>` and `run <id>`."""
    reasons: dict[int, list[str]] = {}
    for name, version in sorted(pins.pins(location).items()):
        reasons.setdefault(version, []).append(f"pin {name}")
    for version, runs in sorted(pins.tracked(location).items()):
        reasons.setdefault(version, []).extend(f"run {run}" for run in runs)
    return {version: tuple(reasons[version]) for version in sorted(reasons)}


def vacuum(
    location: str | Path,
    retention_hours: int | None = None,
    *,
    dry_run: bool = False,
    keep_protected: bool = False,
    allow_short_retention: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> VacuumResult:
    """Removes data files that no version younger than the retention needs, and none that a protected version needs.

    A version is protected by a pin, or because a run has trained on it or scored it.

    Args:
        location: Path or URI of the table.
        retention_hours: Age in hours from which removed files go; None takes the table's own (168 by default).
        dry_run: Only tell what would go.
        keep_protected: Leave the files of protected versions and remove the others, instead of refusing.
        allow_short_retention: Accept fewer hours than 168: readers and writers that are at work now may break.
        storage_options: Access to an object store.

    Raises:
        InvalidArgumentError: If `retention_hours` is negative, or short without `allow_short_retention`.
        VersionProtectedError: If files of a protected version would go; names the versions and what protects them.
        NotADeltaTableError: If there is no table.
    """
    _check_retention(retention_hours, allow_short_retention)
    latest = open_snapshot(location, None, storage_options)
    protected = protected_versions(latest.location)
    held = {version: _files_of(latest.location, version, storage_options) for version in protected}
    doomed = _doomed(latest, retention_hours, storage_options)
    endangered = {version: protected[version] for version, files in held.items() if files & doomed}
    if endangered and not keep_protected:
        named = "; ".join(f"version {version} ({', '.join(by)})" for version, by in endangered.items())
        raise VersionProtectedError(
            f"{latest.location}: VACUUM would remove files of {named}. Unpin or untrack these versions, keep more "
            "hours, or leave their files with keep_protected=True"
        )
    files = doomed - {path for version in endangered for path in held[version]}
    if not dry_run:
        _remove(latest, files, retention_hours, tuple(endangered), storage_options)
    return VacuumResult(tuple(sorted(files)), dry_run, endangered)


def _check_retention(retention_hours: int | None, allow_short: bool) -> None:
    if retention_hours is None:
        return
    if isinstance(retention_hours, bool) or not isinstance(retention_hours, int) or retention_hours < 0:
        raise InvalidArgumentError(f"retention_hours={retention_hours!r}: give whole hours, 0 or more")
    if retention_hours < DEFAULT_RETENTION_HOURS and not allow_short:
        raise InvalidArgumentError(
            f"retention_hours={retention_hours} is below {DEFAULT_RETENTION_HOURS}: files that a reader or writer "
            "needs right now could go; say allow_short_retention=True when nobody else uses the table"
        )


def _doomed(latest: Snapshot, retention_hours: int | None, storage_options: Mapping[str, str] | None) -> set[str]:
    """Lists the files that no version within the retention needs, relative to the table."""
    from deltalake import DeltaTable

    with log_of(latest.location) as log:
        table = DeltaTable(log, storage_options=dict(storage_options or {}) or None)
        paths = table.vacuum(retention_hours, dry_run=True, enforce_retention_duration=False)
    return {unquote(path) for path in paths}


def _remove(
    latest: Snapshot,
    files: set[str],
    retention_hours: int | None,
    keep: tuple[int, ...],
    storage_options: Mapping[str, str] | None,
) -> None:
    if not has_scheme(latest.location):
        # delta-rs would look for them beside the log that it was given, which is a link where a path holds a %.
        for path in files:
            Path(locate(latest.location, path)).unlink(missing_ok=True)
        return
    from deltalake import DeltaTable

    table = DeltaTable(latest.location, storage_options=dict(storage_options or {}) or None)
    table.vacuum(retention_hours, dry_run=False, enforce_retention_duration=False, keep_versions=list(keep) or None)


def _files_of(location: str, version: int, storage_options: Mapping[str, str] | None) -> set[str]:
    """The files of a version; none when the log cannot rebuild it any more, because then nothing can read it."""
    try:
        return {unquote(path) for path in open_snapshot(location, version, storage_options).files.paths}
    except VersionNotFoundError:
        return set()


def _commits(latest: Snapshot, storage_options: Mapping[str, str] | None) -> list[dict[str, object]]:
    from deltalake import DeltaTable

    with log_of(latest.location) as log:
        commits = DeltaTable(log, storage_options=dict(storage_options or {}) or None).history()
    return [dict(commit) for commit in commits]


def _info(
    location: str, commit: Mapping[str, object], counts: _Counts, storage_options: Mapping[str, str] | None
) -> VersionInfo:
    version = int(str(commit["version"]))
    note = _note_of(commit.get("userMetadata"))
    rows, classes = None, None
    try:
        snapshot = open_snapshot(location, version, storage_options)
        classes = counts.of(snapshot)
        rows = snapshot.rows
    except (TableError, FileNotFoundError):  # cleaned from the log, or vacuumed: the commit is all that is left
        classes = None
    return VersionInfo(
        version=version,
        timestamp=datetime.fromtimestamp(int(str(commit["timestamp"])) / 1000, tz=timezone.utc),
        operation=str(commit.get("operation", "")),
        rows=rows,
        class_counts=classes,
        batch_id=note.get("batch_id"),
        source=note.get("source"),
        user=note.get("user"),
    )


def _note_of(text: object) -> dict[str, str]:
    """Reads what an ingest wrote beside its commit; empty for other writers' words."""
    try:
        note = json.loads(str(text))
    except ValueError:
        return {}
    return note if isinstance(note, dict) and note.get("lakelens") == "ingest" else {}


def _rows(
    snapshot: Snapshot, left_out: set[str], storage_options: Mapping[str, str] | None
) -> dict[str, tuple[str | None, str]]:
    """Reads content hash and class by path, of the files that are not in `left_out`."""
    columns = [schema.PATH, schema.CONTENT_HASH, schema.LABEL_NAME]
    found: dict[str, tuple[str | None, str]] = {}
    for file, path in enumerate(snapshot.files.paths):
        if path in left_out:
            continue
        with open_parquet(snapshot, file, storage_options) as parquet:
            for batch in parquet.iter_batches(_BATCH_ROWS, columns=columns):
                for row in batch.to_pylist():
                    found[row[schema.PATH]] = (row[schema.CONTENT_HASH], row[schema.LABEL_NAME] or _NO_CLASS)
    return found


def _by_class(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))
