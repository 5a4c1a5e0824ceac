"""The quarantine: the table of files that could not be stored, its list, and files read again and found unchanged."""

from __future__ import annotations

import contextlib
import functools
import json
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from ..errors import InvalidArgumentError, NotADeltaTableError, TableConflictError
from ..locations import with_suffix
from ..log.data_files import read_batches
from ..log.snapshot import open_snapshot
from ..options import whole_number
from ..results import ReadableResult
from ..stores.data_files import rows_in_utc
from ..table import Table
from .annotations.record import QUARANTINED
from .annotations.record import REASONS as ANNOTATION_REASONS
from .commit.transaction import Batch, Transaction
from .model import schema
from .spark.catalog import create_table, is_made, read_table, sql_name, temporary_view
from .spark.failures import RETRIES, conflicts_named
from .spark.writing_session import local_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DELETED = "deleted"

REASONS: dict[str, str] = {
    "empty": "the file has no bytes",
    "not_an_image": "no decoder knows the bytes, whatever the file is called",
    "truncated": "the file ends before its image does",
    "corrupt": "a decoder knows the format and fails on the content",
    "unsupported": "a decoder knows the format but not this variant of it",
    "too_many_pixels": "width x height is beyond the limit (decompression bomb)",
    "too_many_bytes": "the file is larger than the limit",
    "timeout": "decoding took longer than the limit and was stopped",
    "out_of_memory": "decoding took more memory than the limit",
    "decoder_crashed": "the decoder's process died",
    "unreadable": "the file could not be opened or read",
    "unstable": "the file failed once and succeeded when it was looked at again",
    DELETED: "its row was deleted; the file stays out until its content changes",
}

# These reasons concern the surroundings and not the bytes: the next ingest tries again although the file's size
# and time are the same.
RETRIED_REASONS = ("unreadable", "unstable")
# These may: an ingest itself tries once more.
DOUBTFUL_REASONS = ("unreadable", "timeout", "out_of_memory", "decoder_crashed")


def quarantine_location(location: str) -> str:
    """Names the quarantine table that belongs to the image table at `location`."""
    return with_suffix(location, "_quarantine")


class Quarantine:
    """The quarantine table of one image table; a separate one, as a bad file must not make a version of the images."""

    def __init__(self, spark: SparkSession, table: Table) -> None:
        self._spark = spark
        self._table = Table(quarantine_location(table.location), table.storage_options)
        self.location = self._table.location

    def exists(self) -> bool:
        """Whether any file was ever quarantined."""
        return is_made(self._spark, self._table)

    def read(self) -> DataFrame:
        """The files that are in quarantine now; an empty DataFrame when there never were any."""
        try:
            return read_table(self._spark, self.location)
        except NotADeltaTableError:
            return self._none()

    def read_to_plan(self) -> DataFrame:
        """The same for an ingest, which reads the image table's log; without Spark when there never were any."""
        return self.read() if self.exists() else self._none()

    def record(self, bad: DataFrame | None, leaving: DataFrame | None) -> None:
        """Writes bad files, one row per path, and removes those that are repaired, in one commit."""
        RETRIES.run(lambda: self._write(bad, leaving), f"{self.location}: other writers kept committing first.")

    def forget(self, error: str) -> None:
        """Removes the entries with one error text, in one commit."""
        from pyspark.sql import functions as F

        def forgotten() -> None:
            transaction = Transaction(self._spark, self._table)
            entries = read_table(self._spark, self.location, transaction.version).where(F.col("error") == error)
            transaction.commit(Batch(self._none(), _note(), entries.select(schema.PATH)))

        if self.exists():
            RETRIES.run(forgotten, f"{self.location}: other writers kept committing first.")

    def _write(self, bad: DataFrame | None, leaving: DataFrame | None) -> None:
        if not self.exists():
            if bad is not None:
                with conflicts_named(self.location):
                    create_table(bad, self.location)
            return
        paths = [frame.select(schema.PATH) for frame in (bad, leaving) if frame is not None]
        stale = functools.reduce(lambda one, other: one.union(other), paths)
        Transaction(self._spark, self._table).commit(Batch(self._none() if bad is None else bad, _note(), stale))

    def _none(self) -> DataFrame:
        return local_frame(self._spark, [], schema.ddl_of(schema.QUARANTINE))


def _note() -> str:
    return json.dumps({"lakelens": "quarantine", "commit": uuid.uuid4().hex})


_BATCH_ROWS = 10_000
_OTHER_COLUMNS = ("error", schema.LABEL_NAME, schema.SOURCE_LENGTH, schema.SOURCE_MODIFIED, schema.BATCH_ID)
_REASONS = {*REASONS, *(name for name, rule in ANNOTATION_REASONS.items() if rule.effect == QUARANTINED)}


@dataclass(frozen=True)
class QuarantinedFile:
    """A file that could not be stored."""

    path: str  # Its URI
    reason: str  # One of `REASONS` of `etl/quarantine.py`, or of `etl/annotations/record.py`
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
    quarantine: Table, *, batch_id: str | None = None, reason: str | None = None, limit: int | None = None
) -> QuarantineList:
    """Lists the files that are in quarantine."""
    if limit is not None:
        whole_number("limit", limit, 0)
    known_reasons = set(_REASONS)
    files: list[QuarantinedFile] = []
    for file in iterate_quarantine(quarantine):
        known_reasons.add(file.reason)
        if reason in (None, file.reason) and batch_id in (None, file.batch_id):
            files.append(file)
    if reason is not None and reason not in known_reasons:
        known = ", ".join(sorted(known_reasons))
        raise InvalidArgumentError(f"reason = {reason!r} is not a reason for quarantine; known are: {known}")
    reasons = Counter(file.reason for file in files)
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
                yield QuarantinedFile(row["path"], row.get("reason") or "unknown", *map(row.get, _OTHER_COLUMNS))


COLUMNS = (schema.PATH, schema.SOURCE_LENGTH, schema.SOURCE_MODIFIED, schema.CONTENT_HASH)


class Stamps:
    """The stamps of one image table, in a separate table."""

    def __init__(self, spark: SparkSession, table: Table) -> None:
        self._spark = spark
        self._table = Table(with_suffix(table.location, "_stamps"), table.storage_options)
        self.location = self._table.location

    def exists(self) -> bool:
        """Whether any was ever kept."""
        return is_made(self._spark, self._table)

    def read(self) -> DataFrame:
        """Rows of `COLUMNS`, one per path; an empty DataFrame when none was ever kept."""
        if not self.exists():
            return local_frame(self._spark, [], schema.ddl_of(schema.QUARANTINE)).select(*COLUMNS)
        return read_table(self._spark, self.location)

    def remember(self, seen: DataFrame) -> None:
        """Keeps rows of `COLUMNS`; gives way to another writer, since the next ingest finds them again."""
        with contextlib.suppress(TableConflictError), conflicts_named(self.location):
            self._write(seen)

    def _write(self, seen: DataFrame) -> None:
        if not self.exists():
            create_table(seen, self.location)
            return
        with temporary_view(seen) as view:
            self._spark.sql(
                f"MERGE INTO {sql_name(self.location)} AS kept USING {view} AS seen "
                f"ON kept.{schema.PATH} = seen.{schema.PATH} "
                "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            ).collect()
