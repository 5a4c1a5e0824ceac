"""The notes that lakelens writes beside its commits: who did what, and the classes with their numbers and rows.

RESTORE brings back properties and rows, never the log: what is noted there is the memory of what only ever grows.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..annotations.record import encodable
from ..model.aliases import add_alias
from ..model.labels import in_order
from ..spark.catalog import delta_table
from .commit_times import commit_info

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INGEST, RESTORE, REPAIR = "ingest", "restore", "repair"
DELETE, RENAME, OPTIMIZE = "delete", "rename", "optimize"
_KINDS = (INGEST, RESTORE, REPAIR, DELETE, RENAME, OPTIMIZE)

_CLASSES = "classes"
# Commits of these leave every row as it was.
SAME_ROWS = frozenset({"OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES", "UNSET TBLPROPERTIES"})
# So far back a note is looked for. One without any of ours is of another writer, or older than the notes.
MOST_COMMITS = 1_000
_FIRST_COMMITS = 10


def write_note(kind: str, labels: Mapping[str, int] | None, counts: Mapping[str, int] | None, **others: Any) -> str:
    """Writes what a commit says of itself.

    Args:
        kind: `INGEST`, `RESTORE`, ...
        labels: Every class number that was ever given; None for a commit that changes neither classes nor rows.
        counts: Rows by class of the version that is committed; None where they are not known.
        others: What else is to be said.
    """
    note: dict[str, Any] = {"lakelens": kind}
    note |= {name: encodable(value) if isinstance(value, str) else value for name, value in others.items()}
    if labels is not None:
        rows = in_order(counts or {}, labels)
        note[_CLASSES] = {name: [labels.get(name), None if counts is None else rows[name]] for name in rows}
    return json.dumps(note, ensure_ascii=False)


def note_of(text: object) -> dict[str, Any]:
    """Reads what lakelens wrote beside a commit; empty for other writers' words."""
    try:
        note = json.loads(str(text))
    except ValueError:
        return {}
    return note if isinstance(note, dict) and note.get("lakelens") in _KINDS else {}


def labels_in(note: Mapping[str, Any]) -> dict[str, int] | None:
    """The class numbers of a note; None where it has none."""
    classes = _classes_of(note)
    return None if classes is None else {name: number for name, (number, _) in classes.items() if number is not None}


def counts_in(note: Mapping[str, Any]) -> dict[str, int] | None:
    """The rows by class of a note, in the order of `class_counts`; None where it has none."""
    classes = _classes_of(note)
    if classes is None:
        return None
    counts = {name: rows for name, (_, rows) in classes.items() if rows is not None}
    return counts if len(counts) == len(classes) else None


def _classes_of(note: Mapping[str, Any]) -> dict[str, tuple[int | None, int | None]] | None:
    try:
        return {name: (number, rows) for name, (number, rows) in note[_CLASSES].items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


class NotedCommit(NamedTuple):
    """A commit as far as it speaks of itself."""

    operation: str
    note: dict[str, Any]


class Memory(NamedTuple):
    """What the newest note of a log says of the classes.

    Attributes:
        labels: Every number that was given up to it.
        counts: Rows by class of the latest version; None where rows have changed since, or it does not say.
        rows_follow: Whether the rows of the latest version have no other numbers.
    """

    labels: dict[str, int]
    counts: dict[str, int] | None
    rows_follow: bool


def remember(commits: Iterable[NotedCommit]) -> Memory | None:
    """Finds the newest note that tells class numbers; None where there is none among the last commits.

    Args:
        commits: The commits, the newest first.
    """
    same_rows = True
    for operation, note in itertools.islice(commits, MOST_COMMITS):
        labels = labels_in(note)
        if labels is not None:
            # A restored version may have rows from before a repair.
            rows_follow = same_rows and note["lakelens"] != RESTORE
            return Memory(labels, counts_in(note) if same_rows else None, rows_follow)
        same_rows = same_rows and operation in SAME_ROWS
    return None


def renamed_classes(commits: Iterable[NotedCommit]) -> dict[str, str]:
    """Gives the names of renamed classes by their old names, by the notes of the last commits.

    Args:
        commits: The commits, the newest first.
    """
    notes = [note for _, note in itertools.islice(commits, MOST_COMMITS)]
    aliases: dict[str, str] = {}
    for note in reversed(notes):
        aliases = renamed_by(note, aliases)
    return aliases


def renamed_by(note: Mapping[str, Any], aliases: Mapping[str, str]) -> dict[str, str]:
    """Adds to aliases what a note says of a rename."""
    return add_alias(aliases, *note["renamed"]) if note.get("lakelens") == RENAME else dict(aliases)


def commits_in_files(log: str, version: int, storage_options: Mapping[str, str] | None = None) -> Iterator[NotedCommit]:
    """Reads the commits of a log, the newest first, up to the first that is not there any more.

    Args:
        log: Where the log is.
        version: The newest to read.
        storage_options: Access to an object store.
    """
    for number in range(version, -1, -1):
        try:
            info = commit_info(number, log, storage_options) or {}
        except FileNotFoundError:
            return
        yield NotedCommit(str(info.get("operation", "")), note_of(info.get("userMetadata")))


def commits_by_spark(spark: SparkSession, path: str, version: int) -> Iterator[NotedCommit]:
    """Has Spark read them, where this process has no access to the log: nearly always the first few tell."""
    seen = version + 1
    for limit in (_FIRST_COMMITS, MOST_COMMITS):
        rows = delta_table(spark, path).history(limit).select("version", "operation", "userMetadata").collect()
        for row in rows:
            if row["version"] < seen:
                seen = int(row["version"])
                yield NotedCommit(str(row["operation"]), note_of(row["userMetadata"]))
        if len(rows) < limit:
            return
