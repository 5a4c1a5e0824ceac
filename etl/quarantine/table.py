"""The quarantine: which reasons there are, and the table that keeps every file that could not be stored."""

from __future__ import annotations

import functools
import json
import uuid
from typing import TYPE_CHECKING

from ...locations import with_suffix
from ...table import Table
from ..commit.transaction import Batch, Transaction
from ..model import schema
from ..spark.catalog import create_table, is_delta_table, read_table
from ..spark.conflicts import RETRIES, conflicts_named
from ..spark.local_frames import local_frame

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
    """The quarantine table of one image table.

    It is a separate table, because a bad file must not make a version of the images. An ingest writes it after the
    images: a kill between the two commits leaves bad files in neither table, so that the next ingest takes them again.
    """

    def __init__(self, spark: SparkSession, table: Table) -> None:
        self._spark = spark
        self._table = Table(quarantine_location(table.location), table.storage_options)
        self.location = self._table.location

    def exists(self) -> bool:
        """Whether any file was ever quarantined."""
        return is_delta_table(self._spark, self.location)

    def read(self) -> DataFrame:
        """The files that are in quarantine now; an empty DataFrame when there never were any."""
        if not self.exists():
            return local_frame(self._spark, [], schema.ddl_of(schema.QUARANTINE))
        return read_table(self._spark, self.location)

    def record(self, bad: DataFrame | None, leaving: DataFrame | None) -> None:
        """Writes bad files, one row per path, and removes those that are repaired, in one commit."""
        RETRIES.run(lambda: self._write(bad, leaving), f"{self.location}: other writers kept committing first.")

    def forget(self, error: str) -> None:
        """Removes the entries with one error text, in one commit."""
        from pyspark.sql import functions as F

        def forgotten() -> None:
            transaction = Transaction(self._spark, self._table)
            entries = read_table(self._spark, self.location, transaction.version).where(F.col("error") == error)
            none = local_frame(self._spark, [], schema.ddl_of(schema.QUARANTINE))
            transaction.commit(Batch(none, _note(), entries.select(schema.PATH)))

        if self.exists():
            RETRIES.run(forgotten, f"{self.location}: other writers kept committing first.")

    def _write(self, bad: DataFrame | None, leaving: DataFrame | None) -> None:
        if not self.exists():
            if bad is not None:
                with conflicts_named(self.location):
                    create_table(bad, self.location)
            return
        rows = local_frame(self._spark, [], schema.ddl_of(schema.QUARANTINE)) if bad is None else bad
        paths = [frame.select(schema.PATH) for frame in (bad, leaving) if frame is not None]
        stale = functools.reduce(lambda one, other: one.union(other), paths)
        Transaction(self._spark, self._table).commit(Batch(rows, _note(), stale))


def _note() -> str:
    return json.dumps({"lakelens": "quarantine", "commit": uuid.uuid4().hex})
