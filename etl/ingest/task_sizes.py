"""How an ingest's Spark jobs are sized and set: tasks, files, row groups."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ...spark.port import parallelism
from ..changes.plan import Plan
from ..images.recipe import Recipe
from ..model import schema
from ..sources.listing import Listing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Fewer rows in a task would spend more time on starting it than on its images.
_SMALLEST_TASK_ROWS = 64
_ARROW_CONTENT_BYTES = 64 * 1024 * 1024
_MOST_FILES_AT_ONCE = 256


def deal_work(spark: SparkSession, listing: Listing, plan: Plan, recipe: Recipe) -> DataFrame:
    """Deals the files that are to be read to tasks of equal size, classes mixed: no row group holds one class alone."""
    from pyspark.sql import functions as F

    work = plan.work_files()
    if listing.read_contents is not None:
        return listing.read_contents(work, files_at_once(plan))
    tasks = task_count(plan, recipe, parallelism(spark))
    return work.repartition(tasks).sortWithinPartitions(F.xxhash64(schema.PATH))


def task_count(plan: Plan, recipe: Recipe, slots: int) -> int:
    """Chooses how many tasks share a batch: every slot busy, files neither tiny nor larger than the target."""
    pixels = recipe.size * recipe.size
    per_row = {"raw_rgb": 3 * pixels, "jpeg": pixels // 4}.get(recipe.store, plan.work_bytes // max(1, plan.work))
    by_bytes = math.ceil(plan.work * per_row / schema.TARGET_FILE_BYTES)
    by_slots = min(2 * slots, math.ceil(plan.work / _SMALLEST_TASK_ROWS))
    return max(1, by_bytes, by_slots)


def files_at_once(plan: Plan) -> int:
    """Chooses how many files may share an Arrow batch, so that one of the largest does not pass its bound."""
    return max(1, min(_MOST_FILES_AT_ONCE, _ARROW_CONTENT_BYTES // max(1, plan.largest_bytes)))
