"""The commits of a table with the rows after each: the log is replayed once, not once for each version."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ..errors import TableError
from .entries import commit_numbers, entry_times, info_of, read_commits, versions_in
from .opening import open_table
from .snapshot import ROWS_UNKNOWN, open_snapshot
from .times import commit_times

if TYPE_CHECKING:
    from ..table import Table


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
