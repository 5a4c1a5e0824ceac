"""Sizes and times of files that were read again and found unchanged, so that they are not read a third time.

A copy or a checkout gives files new times without changing them. An ingest finds that out by reading them; their rows
are as they were, and are not rewritten for a time. The findings are in a separate table, by path, and are used only
while the row still holds the content that was read then. To lose it costs the reading, nothing else.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ...errors import TableConflictError
from ...locations import with_suffix
from ...table import Table
from ..model import schema
from ..spark.catalog import create_table, is_delta_table, read_table, sql_name, temporary_view
from ..spark.conflicts import conflicts_named
from ..spark.local_frames import local_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = (schema.PATH, schema.SOURCE_LENGTH, schema.SOURCE_MODIFIED, schema.CONTENT_HASH)


class Stamps:
    """The stamps of one image table, in a separate table."""

    def __init__(self, spark: SparkSession, table: Table) -> None:
        self._spark = spark
        self.location = with_suffix(table.location, "_stamps")

    def exists(self) -> bool:
        """Whether any was ever kept."""
        return is_delta_table(self._spark, self.location)

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
