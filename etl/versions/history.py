"""The history of a table: what each commit made of it, by class, and who made it; from log and ledger alone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ...errors import InvalidArgumentError
from ...ledger.ledger import Ledger
from ...ledger.store import read
from ...log.commits import Commit, commits
from ...options import whole_number
from ...results import ReadableResult
from ...table import Table
from ..commit.transaction import SAME_ROWS, note_of
from ..model.classes import in_order


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
