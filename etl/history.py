"""The history of a table: what each commit made of it, by class, and who made it; without a JVM."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..errors import DataFileError, InvalidArgumentError, NotAnImageTableError
from ..locations import absolute
from ..parquet import open_parquet_file
from .log_walk import LoggedFile, LogState, walk_log
from .snapshot import locate
from .versions import class_column, count_rows, in_order

INGEST, RESTORE = "ingest", "restore"


@dataclass(frozen=True)
class VersionInfo:
    """One version of a table.

    Attributes:
        version: Its number.
        timestamp: When it was committed; None if its commit does not say.
        operation: What Delta calls the commit, such as WRITE.
        rows: Its rows; None when its files are gone or damaged, or the log can no longer rebuild it.
        class_counts: Rows by class name, as `class_counts` gives them; None likewise, or when it has no classes.
        batch_id: The ingest's mark; None for a commit that is none.
        source: What was ingested; None likewise.
        user: Who ingested or restored; None for a commit that is neither.
        restored: Number of the version whose rows a restore has brought back; None for a commit that is none.
    """

    version: int
    timestamp: datetime | None
    operation: str
    rows: int | None
    class_counts: dict[str, int] | None
    batch_id: str | None
    source: str | None
    user: str | None
    restored: int | None = None


def history(
    location: str | Path, limit: int | None = None, storage_options: Mapping[str, str] | None = None
) -> list[VersionInfo]:
    """Lists the versions that the log still knows, the newest first.

    Each data file is read once, its column of classes alone.

    Args:
        location: Path or URI of the table.
        limit: Only the newest, this many; None lists all.
        storage_options: Access to an object store.

    Raises:
        NotADeltaTableError: If there is no table.
        InvalidArgumentError: If `limit` is not a whole number above 0.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InvalidArgumentError(f"limit = {limit!r}: give a whole number of versions, 1 or more")
    counts = _RunningCounts(absolute(location).rstrip("/"), storage_options)
    return [_info(state, counts) for state in walk_log(location, limit, storage_options)][::-1]


def note_of(text: object) -> dict[str, Any]:
    """Reads what lakelens wrote beside a commit; empty for other writers' words."""
    try:
        note = json.loads(str(text))
    except ValueError:
        return {}
    return note if isinstance(note, dict) and note.get("lakelens") in (INGEST, RESTORE) else {}


class _RunningCounts:
    """Rows by class of the version that a walk is at: kept up to date by what each commit adds and removes."""

    def __init__(self, location: str, storage_options: Mapping[str, str] | None) -> None:
        self._location = location
        self._options = storage_options
        self._column: str | None = None
        self._known: dict[str, Counter[str] | None] = {}
        self._gone = 0
        self._total: Counter[str] = Counter()

    def at(self, state: LogState) -> tuple[int | None, dict[str, int] | None]:
        """Gives rows and rows by class of a state, None for what cannot be known."""
        column = class_column(state.schema)
        files = state.files
        if files is None or column != self._column:
            self._known, self._gone, self._total, self._column = {}, 0, Counter(), column
        if files is None:
            return None, None
        for path in self._known.keys() & set(state.removed):
            self._count(self._known.pop(path), -1)
        for path in state.added if self._known else files:
            self._known[path] = self._count_file(path, files[path])
            self._count(self._known[path], 1)
        if self._gone:
            return None, None
        return self._total.total(), None if column is None else _in_order(self._total, state)

    def _count_file(self, path: str, file: LoggedFile) -> Counter[str] | None:
        try:
            with open_parquet_file(locate(self._location, path), self._options) as parquet:
                return count_rows(parquet, self._column, file.partitions)
        except (FileNotFoundError, DataFileError):
            return None

    def _count(self, counts: Counter[str] | None, sign: int) -> None:
        if counts is None:
            self._gone += sign
            return
        for name, rows in counts.items():
            self._total[name] += sign * rows
            if not self._total[name]:
                del self._total[name]


def _in_order(counts: Counter[str], state: LogState) -> dict[str, int]:
    try:
        return in_order(counts, state.configuration)
    except NotAnImageTableError:  # a broken property; the history shows which version to restore
        return in_order(counts, {})


def _info(state: LogState, counts: _RunningCounts) -> VersionInfo:
    note = note_of(state.commit.get("userMetadata"))
    rows, classes = counts.at(state)
    stamp = state.commit.get("inCommitTimestamp") or state.commit.get("timestamp")
    return VersionInfo(
        version=state.version,
        timestamp=None if stamp is None else datetime.fromtimestamp(int(stamp) / 1000, tz=timezone.utc),
        operation=str(state.commit.get("operation", "")),
        rows=rows,
        class_counts=classes,
        batch_id=note.get("batch_id"),
        source=note.get("source"),
        user=note.get("user"),
        restored=note.get("restored"),
    )
