"""The history of a table: what each commit made of it, by class, and who made it; from the log alone, without a JVM."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ...errors import InvalidArgumentError, NotAnImageTableError
from ...results import ReadableResult
from ..log.log_walk import LogState, walk_log
from ..log.notes import RENAME, REPAIR, RESTORE, SAME_ROWS, counts_in, labels_in, note_of, renamed_by
from ..model.aliases import names_at
from ..model.labels import LABELS_PROPERTY, labels_of


@dataclass(frozen=True, repr=False)
class VersionInfo(ReadableResult):
    """One version of a table.

    Attributes:
        version: Its number.
        timestamp: When it was committed; None if its commit does not say.
        operation: What Delta calls the commit, such as WRITE.
        rows: Its rows; None when the log does not say how many rows its files have, or can no longer rebuild it.
        class_counts: Rows by class name, as `class_counts` gives them; None after a commit of another writer that
            may have changed rows.
        batch_id: The ingest's mark; None for a commit that is none.
        source: What was ingested; None likewise.
        user: Who made the commit with lakelens; None for another commit.
        restored: Number of the version whose rows a restore has brought back; None for a commit that is none.
        damage: Descriptions of class numbers in the commit that contradict earlier versions. Checked are its
            property, and files that hold one class alone; `repair` looks at every row.
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
    damage: tuple[str, ...] = ()


def history(
    location: str | Path, limit: int | None = None, storage_options: Mapping[str, str] | None = None
) -> list[VersionInfo]:
    """Lists the versions that the log still knows, the newest first; reads no data file.

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
    numbers = _NumbersSoFar()
    found: list[VersionInfo] = []
    for state in walk_log(location, limit, storage_options):
        found.append(_info(state, numbers, found[-1].class_counts if found else None))
    return found[::-1]


class _NumbersSoFar:
    """The class numbers of the versions that a walk has passed."""

    def __init__(self) -> None:
        self._labels: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._property: str | None = None
        self._renamed: dict[str, str] = {}

    def damage(self, state: LogState, note: Mapping[str, Any]) -> Iterator[str]:
        """Says what a commit contradicts, and learns what is new of it."""
        if note.get("lakelens") in (RENAME, REPAIR, RESTORE):
            self._labels, self._names = {}, {}
        self._renamed = renamed_by(note, self._renamed)
        text = state.configuration.get(LABELS_PROPERTY)
        if text != self._property:
            self._property = text
            try:
                stated = labels_of(state.configuration)
            except NotAnImageTableError as error:
                yield str(error)
            else:
                self._labels = names_at(self._labels, stated, self._renamed, self._renamed)
                self._names = {number: name for name, number in self._labels.items()}
                yield from self._learn(stated.items(), "in the table's property")
        yield from self._learn((labels_in(note) or {}).items(), "in its note")
        if not note and state.files is not None:
            pairs = (state.files[path].numbered for path in state.added)
            yield from self._learn(sorted({pair for pair in pairs if pair is not None}), "in its rows")

    def _learn(self, labels: Iterable[tuple[str, int]], where: str) -> Iterator[str]:
        for name, number in labels:
            before, owner = self._labels.get(name, number), self._names.get(number, name)
            if before != number:
                yield f"{name!r} has the number {number} {where}, and {before} in versions before"
            elif owner != name:
                yield f"{name!r} has the number {number} {where}, which is that of {owner!r}"
            else:
                self._labels[name], self._names[number] = number, name


def _info(state: LogState, numbers: _NumbersSoFar, counts_before: dict[str, int] | None) -> VersionInfo:
    note = note_of(state.commit.get("userMetadata"))
    counts = counts_in(note)
    if counts is None and state.commit.get("operation") in SAME_ROWS:
        counts = counts_before
    # What was counted before all files had been read is only true if none of them was bad.
    is_counted = counts is not None and state.rows in (None, sum(counts.values()))
    stamp = state.commit.get("inCommitTimestamp") or state.commit.get("timestamp")
    return VersionInfo(
        version=state.version,
        timestamp=None if stamp is None else datetime.fromtimestamp(int(stamp) / 1000, tz=timezone.utc),
        operation=str(state.commit.get("operation", "")),
        rows=state.rows,
        class_counts=counts if is_counted else None,
        batch_id=note.get("batch_id"),
        source=note.get("source"),
        user=note.get("user"),
        restored=note.get("restored"),
        damage=tuple(numbers.damage(state, note)),
    )
