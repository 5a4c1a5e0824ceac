"""The commits of a Delta table in their order, each with the files that are active after it; without a JVM.

Opening each of a thousand versions would replay the log a thousand times. Here it is replayed once: delta-rs opens the
first version, and what each commit adds and removes is read from its JSON. A commit that changes properties, schema or
protocol is opened by delta-rs again, so that everything that it refuses is refused here too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import unquote

from ..errors import TableError
from ..locations import absolute, has_scheme
from ..store_options import delta_options
from . import schema
from .opening import log_of
from .snapshot import ROWS_UNKNOWN, Snapshot, open_snapshot

_COMMIT = re.compile(r"^(\d{20})\.json$")
_CHECKPOINT = re.compile(r"^(\d{20})\.checkpoint\..*(parquet|json)$")


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


def walk_log(
    location: str | Path, limit: int | None = None, storage_options: Mapping[str, str] | None = None
) -> Iterator[LogState]:
    """Gives the state after each commit whose entry the log still has, the oldest first.

    Args:
        location: Path or URI of the table.
        limit: Only the last commits, this many; None gives all.
        storage_options: Access to an object store.

    Raises:
        NotADeltaTableError: If there is no table.
    """
    latest = open_snapshot(location, None, storage_options)
    with log_of(latest.location) as place:
        log = _LogFiles(place, storage_options)
        commits = [number for number in log.commits if number <= latest.version]
        state = LogState()
        for number in commits[-limit:] if limit is not None else commits:
            actions = log.read(number)
            is_next = state.files is not None and number == state.version + 1
            state.version, state.added, state.removed = number, (), ()
            state.commit = next((entry["commitInfo"] for entry in actions if "commitInfo" in entry), {})
            if is_next and not any(_changes_more_than_files(entry) for entry in actions):
                _apply(state, actions)
            else:
                _reopen(state, latest.location, log, storage_options)
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


def _reopen(state: LogState, location: str, log: _LogFiles, storage_options: Mapping[str, str] | None) -> None:
    before = state.files or {}
    state.files = None
    if log.can_rebuild(state.version):
        try:
            snapshot = open_snapshot(location, state.version, storage_options)
        except TableError:  # a feature that plain Parquet would get wrong, or a log that a hand has been at
            return
        state.files = _files_of(snapshot)
        state.schema, state.configuration = snapshot.schema, snapshot.configuration
        state.added = tuple(state.files.keys() - before.keys())
        state.removed = tuple(before.keys() - state.files.keys())
        state.count_anew()


def _files_of(snapshot: Snapshot) -> dict[str, LoggedFile]:
    return {path: LoggedFile(int(snapshot.files.rows[i])) for i, path in enumerate(snapshot.files.paths)}


class _LogFiles:
    """The entries of a table's log: on a disk by their paths, in an object store through delta-rs."""

    def __init__(self, place: str, storage_options: Mapping[str, str] | None) -> None:
        self._folder: Any = Path(absolute(place)) / "_delta_log"
        self._system: Any = None
        if has_scheme(absolute(place)):
            import pyarrow.fs
            from deltalake.fs import DeltaStorageHandler

            self._system = pyarrow.fs.PyFileSystem(DeltaStorageHandler(place, delta_options(storage_options)))
        names = self._names()
        self.commits = sorted(int(found[1]) for name in names if (found := _COMMIT.match(name)))
        self._committed = set(self.commits)
        self._checkpoints = sorted({int(found[1]) for name in names if (found := _CHECKPOINT.match(name))})

    def read(self, version: int) -> list[dict[str, Any]]:
        name = f"{version:020d}.json"
        if self._system is None:
            text = (self._folder / name).read_text(encoding="utf-8")
        else:
            with self._system.open_input_stream(f"_delta_log/{name}") as stream:
                text = stream.read().decode("utf-8")
        # Not splitlines(): Spark writes U+2028 and its like into its JSON as they are.
        return [json.loads(line) for line in text.split("\n") if line.strip()]

    def can_rebuild(self, version: int) -> bool:
        """Whether the log still holds what a version is made of."""
        start = max((number for number in self._checkpoints if number <= version), default=-1)
        return all(number in self._committed for number in range(start + 1, version + 1))

    def _names(self) -> list[str]:
        if self._system is None:
            return [path.name for path in self._folder.iterdir()]
        import pyarrow.fs

        found = self._system.get_file_info(pyarrow.fs.FileSelector("_delta_log"))
        return [entry.base_name for entry in found if entry.is_file]
