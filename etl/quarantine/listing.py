"""The files that are in quarantine now, read without a JVM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from ...errors import InvalidArgumentError, NotADeltaTableError
from ...log.data_files import read_batches
from ...log.opening import require_entries
from ...results import ReadableResult
from ...stores.parquet import rows_in_utc
from ...table import Table
from ..annotations.record import QUARANTINED
from ..annotations.record import REASONS as ANNOTATION_REASONS
from ..model import schema
from . import table as quality

_BATCH_ROWS = 10_000
_REASONS = {*quality.REASONS, *(name for name, rule in ANNOTATION_REASONS.items() if rule.effect == QUARANTINED)}


@dataclass(frozen=True)
class QuarantinedFile:
    """A file that could not be stored.

    Attributes:
        path: Its URI.
        reason: One of `REASONS` of `etl/quarantine/table.py`, or of `etl/annotations/record.py`.
        error: What failed, in the decoder's words.
        label_name: Its class, if its source says one.
        source_length: Its bytes; None when it could not be opened.
        source_modified: When it was last changed, in UTC; None likewise.
        batch_id: The ingest that found it bad.
    """

    path: str
    reason: str
    error: str | None
    label_name: str | None
    source_length: int | None
    source_modified: datetime | None
    batch_id: str | None


@dataclass(frozen=True, repr=False)
class QuarantineList(ReadableResult):
    """Files in quarantine.

    Attributes:
        files: Those that were asked for, by path; as many as the limit lets through.
        reasons: How many were asked for by reason, the most frequent first; also of those beyond the limit.
    """

    files: tuple[QuarantinedFile, ...]
    reasons: dict[str, int]

    @property
    def count(self) -> int:
        """How many files were asked for, also those beyond the limit."""
        return sum(self.reasons.values())


def list_quarantine(
    table: str | Path | Table,
    *,
    batch_id: str | None = None,
    reason: str | None = None,
    limit: int | None = None,
) -> QuarantineList:
    """Lists the files of an image table that are in quarantine.

    A file that was repaired, or is gone from a source that is ingested with `removed="delete"`, leaves the quarantine
    with that ingest.

    Args:
        table: The image table, or its path or URI.
        batch_id: Only files that this ingest found bad.
        reason: Only files with this reason.
        limit: The most files to list; None lists all.

    Raises:
        NotADeltaTableError: If there is no table.
        InvalidArgumentError: If `reason` is unknown, or `limit` is negative.
    """
    named = Table.of(table)
    require_entries(named)
    quarantine = replace(named, location=quality.quarantine_location(named.path))
    return list_quarantine_at(quarantine, batch_id=batch_id, reason=reason, limit=limit)


def list_quarantine_at(
    quarantine: Table,
    *,
    batch_id: str | None = None,
    reason: str | None = None,
    limit: int | None = None,
) -> QuarantineList:
    """Lists the same by the quarantine table itself, which need not exist."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise InvalidArgumentError(f"limit = {limit!r}: give a whole number of files, 0 or more")
    reasons: Counter[str] = Counter()
    present: set[str] = set()
    files: list[QuarantinedFile] = []
    for file in iterate_quarantine(quarantine):
        present.add(file.reason)
        if (reason is not None and file.reason != reason) or (batch_id is not None and file.batch_id != batch_id):
            continue
        reasons[file.reason] += 1
        files.append(file)
    known_reasons = present | _REASONS
    if reason is not None and reason not in known_reasons:
        known = ", ".join(sorted(known_reasons))
        raise InvalidArgumentError(f"reason = {reason!r} is none of the reasons for quarantine: {known}")
    files.sort(key=lambda file: file.path)
    return QuarantineList(tuple(files[:limit]), dict(reasons.most_common()))


def iterate_quarantine(quarantine: Table) -> Iterator[QuarantinedFile]:
    """Reads a quarantine table in its own order; gives nothing when there is none."""
    try:
        snapshot = quarantine.snapshot()
    except NotADeltaTableError:
        return
    wanted = schema.quarantine_arrow_schema().names
    for index in range(len(snapshot.files)):
        for batch in read_batches(snapshot, index, wanted, batch_rows=_BATCH_ROWS):
            for row in rows_in_utc(batch):
                yield QuarantinedFile(
                    row["path"],
                    row.get("reason") or "unknown",
                    row.get("error"),
                    row.get(schema.LABEL_NAME),
                    row.get(schema.SOURCE_LENGTH),
                    row.get(schema.SOURCE_MODIFIED),
                    row.get(schema.BATCH_ID),
                )
