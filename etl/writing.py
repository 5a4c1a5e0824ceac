"""How an ingest's Spark jobs are sized and set: tasks, files, row groups."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from . import schema
from .listing import Listing
from .local_frames import ARROW_ENABLED
from .plan import Plan
from .recipe import Recipe

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A file of a split holds about this much, so that a rank reads several per epoch and none for long.
_TARGET_FILE_BYTES = 128 * 1024 * 1024
# Fewer rows in a task would spend more time on starting it than on its images.
_SMALLEST_TASK_ROWS = 64
_ARROW_CONTENT_BYTES = 64 * 1024 * 1024
_MOST_FILES_AT_ONCE = 256


def writing_session(spark: SparkSession) -> SparkSession:
    """Gives a session like `spark` whose settings may be changed without the user's noticing."""
    from pyspark.sql import SparkSession as Session

    session = Session(spark.sparkContext, spark._jsparkSession.cloneSession())
    slots = 2 * spark.sparkContext.defaultParallelism
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


def deal_work(spark: SparkSession, listing: Listing, plan: Plan, recipe: Recipe) -> DataFrame:
    """Deals the files that are to be read to tasks of equal size, classes mixed: no row group holds one class alone."""
    from pyspark.sql import functions as F

    work = plan.work_files()
    if listing.read_contents is not None:
        return listing.read_contents(work, files_at_once(plan))
    tasks = task_count(plan, recipe, spark.sparkContext.defaultParallelism)
    return work.repartition(tasks).sortWithinPartitions(F.xxhash64(schema.PATH))


def task_count(plan: Plan, recipe: Recipe, slots: int) -> int:
    """Chooses how many tasks share a batch: every slot busy, files neither tiny nor larger than the target."""
    pixels = recipe.size * recipe.size
    per_row = {"raw_rgb": 3 * pixels, "jpeg": pixels // 4}.get(recipe.store, plan.work_bytes // max(1, plan.work))
    by_bytes = math.ceil(plan.work * per_row / _TARGET_FILE_BYTES)
    by_slots = min(2 * slots, math.ceil(plan.work / _SMALLEST_TASK_ROWS))
    return max(1, by_bytes, by_slots)


def files_at_once(plan: Plan) -> int:
    """Chooses how many files may share an Arrow batch, so that one of the largest does not pass its bound."""
    return max(1, min(_MOST_FILES_AT_ONCE, _ARROW_CONTENT_BYTES // max(1, plan.largest_bytes)))
