"""The commits of a Delta table in their order, each with the files that are active after it; without a JVM.

Opening each of a thousand versions would replay the log a thousand times. Here it is replayed once: delta-rs opens the
first version, and what each commit adds and removes is read from its JSON. A commit that changes properties, schema or
protocol is opened by delta-rs again, so that everything that it refuses is refused here too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast
from urllib.parse import unquote

from ...errors import TableError
from ...log.opening import open_table, uri_for_delta_rs
from ...log.snapshot import ROWS_UNKNOWN, Snapshot
from ...table import Table
from ..model import schema
from .log_files import LogFiles


class LoggedFile(NamedTuple):
    """What the log says of an active data file.

    Attributes:
        rows: Its rows; -1 where the log has no statistics.
        numbered: Its class and that class's number, where it holds one class alone and the commit's statistics say so.
    """

    rows: int
    numbered: tuple[str, int] | None = None


@dataclass
class LogState:
    """A table just after one commit; the same object is changed by the next.

    Attributes:
        version: The commit's number.
        commit: Its `commitInfo`, empty when it has none.
        files: The active files by their path in the log, not URL-encoded; None when the version cannot be rebuilt or is
            one that plain Parquet would show wrongly.
        added: Paths that are active since this commit.
        removed: Paths that were active before it and are not any more; empty when `files` was None before.
        schema: As `Snapshot.schema`.
        configuration: As `Snapshot.configuration`.
    """

    version: int = -1
    commit: Mapping[str, Any] = field(default_factory=dict)
    files: dict[str, LoggedFile] | None = None
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    schema: Mapping[str, str] = field(default_factory=dict)
    configuration: Mapping[str, str] = field(default_factory=dict)
    _rows: int = 0
    _files_without_rows: int = 0

    @property
    def rows(self) -> int | None:
        """Its rows; None where the log does not say."""
        return None if self.files is None or self._files_without_rows else self._rows

    def count(self, file: LoggedFile, sign: int) -> None:
        """Counts a file that came, or by a sign of -1 one that went."""
        if file.rows == ROWS_UNKNOWN:
            self._files_without_rows += sign
        else:
            self._rows += sign * file.rows

    def count_anew(self) -> None:
        """Counts all files."""
        self._rows = self._files_without_rows = 0
        for file in (self.files or {}).values():
            self.count(file, 1)


def walk_log(table: Table, limit: int | None = None) -> Iterator[LogState]:
    """Returns the state after each commit whose entry the log still has, the oldest first.

    Args:
        table: The table.
        limit: Only the last commits, this many; None gives all.

    Raises:
        NotADeltaTableError: If there is no table.
    """
    latest = open_table(table.at(None)).version()
    log = LogFiles(uri_for_delta_rs(table), table.storage_options)
    commits = [number for number in log.commits if number <= latest]
    state = LogState()
    for number in commits[-limit:] if limit is not None else commits:
        actions = log.read(number)
        is_next = state.files is not None and number == state.version + 1
        state.version, state.added, state.removed = number, (), ()
        state.commit = next((entry["commitInfo"] for entry in actions if "commitInfo" in entry), {})
        if is_next and not any(_changes_more_than_files(entry) for entry in actions):
            _apply(state, actions)
        else:
            _reopen(state, table, log)
        yield state


def _changes_more_than_files(entry: Mapping[str, Any]) -> bool:
    return "metaData" in entry or "protocol" in entry or bool(entry.get("add", {}).get("deletionVector"))


def _apply(state: LogState, actions: list[dict[str, Any]]) -> None:
    files = state.files if state.files is not None else {}
    removed = {unquote(entry["remove"]["path"]) for entry in actions if "remove" in entry}
    added = {unquote(entry["add"]["path"]): _logged(entry["add"]) for entry in actions if "add" in entry}
    before = (removed | added.keys()) & files.keys()
    for path in before:
        state.count(files.pop(path), -1)
    for path, file in added.items():
        files[path] = file
        state.count(file, 1)
    state.added = tuple(added.keys() - before)
    state.removed = tuple((removed - added.keys()) & before)


def _logged(add: Mapping[str, Any]) -> LoggedFile:
    statistics = json.loads(add.get("stats") or "{}")
    least, most = (statistics.get(bound) or {} for bound in ("minValues", "maxValues"))
    pair = least.get(schema.LABEL_NAME), least.get(schema.LABEL)
    is_one = None not in pair and pair == (most.get(schema.LABEL_NAME), most.get(schema.LABEL))
    rows = int(statistics.get("numRecords", ROWS_UNKNOWN))
    return LoggedFile(rows, cast("tuple[str, int]", pair) if is_one else None)


def _reopen(state: LogState, table: Table, log: LogFiles) -> None:
    before = state.files or {}
    state.files = None
    if log.can_rebuild(state.version):
        try:
            snapshot = table.at(state.version).snapshot()
        except TableError:  # a feature that plain Parquet would get wrong, or a log that was edited by hand
            return
        state.files = _files_of(snapshot)
        state.schema, state.configuration = snapshot.schema, snapshot.configuration
        state.added = tuple(state.files.keys() - before.keys())
        state.removed = tuple(before.keys() - state.files.keys())
        state.count_anew()


def _files_of(snapshot: Snapshot) -> dict[str, LoggedFile]:
    return {path: LoggedFile(int(snapshot.files.rows[i])) for i, path in enumerate(snapshot.files.paths)}
