"""The session that writes images, with the settings that image tables need, and frames of the driver's rows in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...errors import SessionError
from ...spark.port import as_active_session, cloned_session, is_connect, option_of, parallelism, set_all
from ..model import schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Of local rows, on serverless compute (Databricks, "Serverless compute limitations").
CONNECT_BYTES = 128_000_000


def local_frame(spark: SparkSession, rows: Sequence[tuple[Any, ...]], ddl: str) -> DataFrame:
    """Returns rows of the driver as a data frame that is part of the query's plan."""
    # Of a list, `createDataFrame` makes one whose rows pass through a Python worker on every executor.
    with as_active_session(spark):
        if not rows:
            return spark.createDataFrame([], ddl).limit(0)  # of which no task is left
        import pandas as pd

        # As objects: pandas would make floating-point numbers of a column of integers in which one is missing.
        frame = pd.DataFrame(rows, dtype=object)
        size = pa.Table.from_pandas(frame, preserve_index=False).nbytes if is_connect(spark) else 0
        if size > CONNECT_BYTES:
            raise SessionError(
                f"{size / 1e6:.1f} MB of local rows, and a Spark Connect session takes at most "
                f"{CONNECT_BYTES / 1e6:.0f} MB; give the file by a path that the workers can open, such as one of a "
                "volume, or use a classic session (dedicated compute)"
            )
        return spark.createDataFrame(frame, ddl)


# Shuffled data is small compared with the images: Spark's 200 partitions would be 200 tasks for some rows each.
_SHUFFLE = "spark.sql.shuffle.partitions"
_ROW_GROUP = "parquet.block.size"
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    # Each stage of an adaptive query is a separate job; the few small ones here cost more than they can save.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
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
    """Returns a session like `spark` with settings for writing images; call it in what `naming_failures` wraps."""
    session, slots = cloned_session(spark), 2 * parallelism(spark)
    shuffled = min(slots, int(option_of(spark, _SHUFFLE) or "200"))
    set_all(session, {**_SETTINGS, _SHUFFLE: str(shuffled), _ROW_GROUP: str(schema.ROW_GROUP_BYTES)})
    return session
