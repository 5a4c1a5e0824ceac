"""The files that are in quarantine now, read without a JVM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from ...errors import InvalidArgumentError, NotADeltaTableError
from ...log.data_files import read_batches
from ...log.snapshot import open_snapshot
from ...options import whole_number
from ...results import ReadableResult
from ...stores.parquet import rows_in_utc
from ...table import Table
from ..annotations.record import QUARANTINED
from ..annotations.record import REASONS as ANNOTATION_REASONS
from ..model import schema
from .table import REASONS

_BATCH_ROWS = 10_000
_REASONS = {*REASONS, *(name for name, rule in ANNOTATION_REASONS.items() if rule.effect == QUARANTINED)}


@dataclass(frozen=True)
class QuarantinedFile:
    """A file that could not be stored."""

    path: str  # Its URI
    reason: str  # One of `REASONS` of `etl/quarantine/table.py`, or of `etl/annotations/record.py`
    error: str | None  # What failed, in the decoder's words
    label_name: str | None  # Its class, if its source has one
    source_length: int | None  # Its bytes; None when it could not be opened
    source_modified: datetime | None  # When it was last changed, in UTC; None likewise
    batch_id: str | None  # The ingest that found it bad


@dataclass(frozen=True, repr=False)
class QuarantineList(ReadableResult):
    """Files in quarantine."""

    files: tuple[QuarantinedFile, ...]  # The requested files by path, up to the limit
    # The number of requested files by reason, the most frequent first; those beyond the limit count too
    reasons: dict[str, int]

    @property
    def count(self) -> int:
        """The number of requested files; those beyond the limit count too."""
        return sum(self.reasons.values())


def list_quarantine(
    quarantine: Table,
    *,
    batch_id: str | None = None,
    reason: str | None = None,
    limit: int | None = None,
) -> QuarantineList:
    """Lists the files that are in quarantine.

    A file that was repaired, or is gone from a source that is ingested with `delete_missing`, leaves the quarantine
    with that ingest.
    """
    if limit is not None:
        whole_number("limit", limit, 0)
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
        raise InvalidArgumentError(f"reason = {reason!r} is not a reason for quarantine; known are: {known}")
    files.sort(key=lambda file: file.path)
    return QuarantineList(tuple(files[:limit]), dict(reasons.most_common()))


def iterate_quarantine(quarantine: Table) -> Iterator[QuarantinedFile]:
    """Reads a quarantine table in its own order; gives nothing when there is none."""
    try:
        snapshot = open_snapshot(quarantine)
    except NotADeltaTableError:
        return
    wanted = schema.QUARANTINE.names
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
