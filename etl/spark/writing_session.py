"""The session that writes images: a copy of the caller's, with the settings that image tables need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...spark.port import cloned_session, parallelism
from ..model import schema
from .local_frames import ARROW_ENABLED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def writing_session(spark: SparkSession) -> SparkSession:
    """Returns a session like `spark` whose settings may be changed without the user's noticing."""
    session, slots = cloned_session(spark), 2 * parallelism(spark)
    settings = {
        "spark.sql.session.timeZone": "UTC",
        # Each stage of an adaptive query is a job of its own; the few small ones here cost more than they can save.
        "spark.sql.adaptive.enabled": "false",
        # What is shuffled is small beside the images: Spark's 200 partitions would be 200 tasks for some rows each.
        "spark.sql.shuffle.partitions": str(min(slots, int(spark.conf.get("spark.sql.shuffle.partitions", "200")))),
        ARROW_ENABLED: "true",
        # One open file per split in each task, instead of sorting the images by split first.
        "spark.sql.maxConcurrentOutputFileWriters": "16",
        "spark.sql.parquet.compression.codec": "uncompressed",
        # Spark would not write the time of a file that claims to be from before 1900, whose day old readers mistake.
        "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
        "parquet.block.size": str(schema.ROW_GROUP_BYTES),
        f"parquet.enable.dictionary#{schema.IMAGE}": "false",
        "spark.databricks.delta.optimizeWrite.enabled": "false",
        "spark.databricks.delta.autoCompact.enabled": "false",
    }
    for name, value in settings.items():
        session.conf.set(name, value)
    return session
