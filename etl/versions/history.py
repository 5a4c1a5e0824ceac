"""The history of a table: what each commit made of it, by class, and who made it; from log and ledger alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import unquote

from ...errors import InvalidArgumentError, TableError
from ...ledger.ledger import Ledger
from ...ledger.store import read
from ...log.entries import commit_numbers, commit_times, entry_times, info_of, read_commits, versions_in
from ...log.opening import open_table
from ...log.snapshot import ROWS_UNKNOWN, open_snapshot
from ...options import whole_number
from ...results import ReadableResult
from ...table import Table
from ..commit.transaction import SAME_ROWS, note_of
from ..model.classes import in_order


@dataclass(frozen=True)
class Commit:
    """One commit."""

    version: int  # Its number
    info: Mapping[str, Any]  # Its `commitInfo`; empty when it has none
    time: datetime | None  # When it was made; None where the log can no longer rebuild the version
    rows: int | None  # The table's rows after it; None where the log does not say, or can no longer rebuild the version


def commits(table: Table, limit: int | None = None) -> Iterator[Commit]:
    """Yields each commit whose entry the log still has, the oldest first."""
    opened, names = open_table(table.at(None)), entry_times(table)
    latest = opened.version()
    times = commit_times(table, names, latest, opened.metadata().configuration)
    numbers = [number for number in commit_numbers(names) if number <= latest]
    numbers = numbers if limit is None else numbers[-limit:]
    _, whole = versions_in(names)
    files: _FileRows | None = _FileRows({}) if numbers[:1] == [0] else None
    before = -1
    for number, actions in zip(numbers, read_commits(table, numbers), strict=True):
        if files is not None and number == before + 1:
            files.apply(actions)
        else:
            files = _files_at(table.at(number)) if number in whole else None
        before = number
        yield Commit(number, info_of(actions), times.get(number), None if files is None else files.total)


class _FileRows:
    """The rows of the active data files, as commits are applied."""

    def __init__(self, rows: dict[str, int]) -> None:
        self._rows = rows
        self._sum = sum(rows.values())
        self._unknown = sum(count == ROWS_UNKNOWN for count in rows.values())

    @property
    def total(self) -> int | None:
        """The rows of all files; None if those of one are not known."""
        return None if self._unknown else self._sum

    def apply(self, actions: Iterable[Mapping[str, Any]]) -> None:
        """Takes out the files that a commit removes, and adds those that it adds."""
        added = [action["add"] for action in actions if "add" in action]
        removed = [action["remove"] for action in actions if "remove" in action]
        for path in {unquote(file["path"]) for file in (*removed, *added)} & self._rows.keys():
            self._count(self._rows.pop(path), -1)
        for file in added:
            rows = self._rows[unquote(file["path"])] = _rows_of(file)
            self._count(rows, 1)

    def _count(self, rows: int, sign: int) -> None:
        self._sum += sign * rows
        self._unknown += sign * (rows == ROWS_UNKNOWN)


def _rows_of(add: Mapping[str, Any]) -> int:
    rows = int(json.loads(add.get("stats") or "{}").get("numRecords", ROWS_UNKNOWN))
    deleted = (add.get("deletionVector") or {}).get("cardinality", 0)
    return rows if rows == ROWS_UNKNOWN else rows - int(deleted)


def _files_at(table: Table) -> _FileRows | None:
    try:
        files = open_snapshot(table).files
    except TableError:  # a feature that is not known here, or a log that was edited by hand
        return None
    return _FileRows(dict(zip(files.paths, files.rows.tolist(), strict=True)))


@dataclass(frozen=True, repr=False)
class VersionInfo(ReadableResult):
    """One version of a table."""

    version: int  # Its number
    timestamp: datetime | None  # When it was committed; None if the log can no longer rebuild it
    operation: str  # What Delta calls the commit, such as WRITE
    # Its rows; None if the log lacks the number of rows of its files, or can no longer rebuild the version
    rows: int | None
    # Rows by class name, as `class_counts` gives them; None after a commit of another writer that may have changed
    # rows, and for versions so old that the ledger has dropped them
    class_counts: dict[str, int] | None
    batch_id: str | None  # The ingest's mark; None for a commit that is none
    source: str | None  # What was ingested; None likewise
    user: str | None  # Who made the commit with lakelens; None for another commit
    # Number of the version whose rows a restore has brought back; None for a commit that is none
    restored: int | None = None


def history(table: Table, limit: int | None = None) -> list[VersionInfo]:
    """Lists the versions that the log still knows, the newest first; reads no data file."""
    if limit is not None:
        whole_number("limit", limit, 1)
    try:
        ledger = read(table)
    except InvalidArgumentError:  # a place that can have none
        ledger = Ledger()
    found: list[VersionInfo] = []
    for commit in commits(table, limit):
        found.append(_info(commit, ledger, found[-1].class_counts if found else None))
    return found[::-1]


def _info(commit: Commit, ledger: Ledger, counts_before: dict[str, int] | None) -> VersionInfo:
    note = note_of(commit.info.get("userMetadata"))
    counts = ledger.counts_at(commit.version)
    if counts is None and commit.info.get("operation") in SAME_ROWS:
        counts = counts_before
    # Another table may have been put in this one's place.
    is_counted = counts is not None and commit.rows in (None, sum(counts.values()))
    return VersionInfo(
        version=commit.version,
        timestamp=commit.time,
        operation=str(commit.info.get("operation", "")),
        rows=commit.rows,
        class_counts=in_order(counts, ledger.labels_at(commit.version)) if counts is not None and is_counted else None,
        batch_id=note.get("batch_id"),
        source=note.get("source"),
        user=note.get("user"),
        restored=note.get("restored"),
    )
