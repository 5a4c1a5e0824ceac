"""The session that writes images: the caller's with the settings that image tables need, as a copy where it can be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...spark.port import cloned_session, option_of, parallelism, set_all
from ..model import schema
from .local_frames import ARROW_ENABLED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Shuffled data is small compared with the images: Spark's 200 partitions would be 200 tasks for some rows each.
_SHUFFLE = "spark.sql.shuffle.partitions"
_ROW_GROUP = "parquet.block.size"
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    # Each stage of an adaptive query is a separate job; the few small ones here cost more than they can save.
    "spark.sql.adaptive.enabled": "false",
    ARROW_ENABLED: "true",
    # One open file per split in each task, instead of sorting the images by split first.
    "spark.sql.maxConcurrentOutputFileWriters": "16",
    "spark.sql.parquet.compression.codec": "uncompressed",
    # Spark would not write the time of a file that claims to be from before 1900, whose day old readers mistake.
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    f"parquet.enable.dictionary#{schema.IMAGE}": "false",
    "spark.databricks.delta.optimizeWrite.enabled": "false",
    "spark.databricks.delta.autoCompact.enabled": "false",
}
_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
SET_FOR_WRITING = (*_SETTINGS, _SHUFFLE, _ROW_GROUP, _BATCH_ROWS)


def set_batch_rows(session: SparkSession, rows: int) -> None:
    """Sets the rows of an Arrow batch."""
    set_all(session, {_BATCH_ROWS: str(rows)})


def writing_session(spark: SparkSession) -> SparkSession:
    """Returns a session like `spark` with settings for writing images; call it in what `naming_failures` wraps.

    The caller's session stays as it is. One of Spark Connect has its settings back when the wrapped function returns.
    """
    session, slots = cloned_session(spark), 2 * parallelism(spark)
    shuffled = min(slots, int(option_of(spark, _SHUFFLE) or "200"))
    set_all(session, {**_SETTINGS, _SHUFFLE: str(shuffled), _ROW_GROUP: str(schema.ROW_GROUP_BYTES)})
    return session
