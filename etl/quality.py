"""The quarantine: which reasons there are, and the table that keeps every file that could not be stored."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from ..errors import TableConflictError
from . import schema
from .catalog import create_table, delta_table, is_delta_table, read_table
from .conflicts import conflicts_named
from .local_frames import local_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ATTEMPTS = 5

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
}

# These say something of the surroundings rather than of the bytes: the next ingest tries again although the file's size
# and time are the same.
RETRIED_REASONS = ("unreadable", "unstable")


def quarantine_location(location: str) -> str:
    """Names the quarantine table that belongs to the image table at `location`."""
    return location.rstrip("/") + "_quarantine"


class Quarantine:
    """The quarantine table of one image table.

    It is a table of its own, because a bad file must not make a version of the images. An ingest writes it after the
    images: a kill between the two commits leaves bad files in neither table, so that the next ingest takes them again.
    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        self._spark = spark
        self.location = quarantine_location(location)

    def exists(self) -> bool:
        """Whether any file was ever quarantined."""
        return is_delta_table(self._spark, self.location)

    def read(self) -> DataFrame:
        """The files that are in quarantine now; an empty DataFrame when there never were any."""
        if not self.exists():
            return local_frame(self._spark, [], schema.QUARANTINE_DDL)
        return read_table(self._spark, self.location)

    def record(self, bad: DataFrame | None, mended_paths: DataFrame | None) -> None:
        """Writes bad files, one row per path, and takes out those that are mended, in one commit.

        Args:
            bad: Rows of `schema.QUARANTINE_DDL`, or None.
            mended_paths: Rows with a column `path`, or None.

        Raises:
            TableConflictError: If other writers kept changing the quarantine.
        """
        from pyspark.sql import functions as F

        changes = [] if bad is None else [bad.withColumn("mended", F.lit(False))]
        if mended_paths is not None:
            fields = local_frame(self._spark, [], schema.QUARANTINE_DDL).schema[1:]
            empty = [F.lit(None).cast(field.dataType).alias(field.name) for field in fields]
            changes.append(mended_paths.select(schema.PATH, *empty, F.lit(True).alias("mended")))
        for _ in range(_ATTEMPTS):
            try:
                self._write(changes)
            except TableConflictError as error:
                conflict = error
            else:
                return
        raise conflict

    def _write(self, changes: list[DataFrame]) -> None:
        with conflicts_named(self.location):
            if self.exists():
                self._merge(functools.reduce(lambda one, other: one.unionByName(other), changes))
            else:
                create_table(changes[0].where("NOT mended").drop("mended"), self.location)

    def _merge(self, changes: DataFrame) -> None:
        values = {name: f"changes.{name}" for name in schema.quarantine_arrow_schema().names}
        (
            delta_table(self._spark, self.location)
            .alias("quarantine")
            .merge(changes.alias("changes"), f"quarantine.{schema.PATH} = changes.{schema.PATH}")
            .whenMatchedDelete("changes.mended")
            .whenMatchedUpdate(set=values)
            .whenNotMatchedInsert("NOT changes.mended", values=values)
            .execute()
        )
