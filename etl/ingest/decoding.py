"""Deals the files of a plan to Spark tasks, which decode each once: Spark keeps what became of it until the commit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...progress import image_progress
from ...spark.port import counter, kept, parallelism
from ...spark.workers import map_in_arrow
from ..changes.plan import Plan
from ..images.recipe import Recipe
from ..model import schema
from ..model.classes import NO_CLASS
from ..spark.writing_session import local_frame
from .prepare import Prepared
from .row_task import BatchTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Fewer rows in a task would spend more time on starting it than on its images.
_SMALLEST_TASK_ROWS = 64
_ARROW_CONTENT_BYTES = 64 * 1024 * 1024
_MOST_FILES_AT_ONCE = 256


def _dealt_work(prepared: Prepared) -> DataFrame:
    """Deals the files that are to be read to tasks of equal size, classes mixed: no row group holds one class alone."""
    from pyspark.sql import functions as F

    plan, work = prepared.plan, prepared.plan.work_files()
    if prepared.listing.read_contents is not None:
        # One of the largest files must not pass the bound of an Arrow batch.
        at_once = max(1, min(_MOST_FILES_AT_ONCE, _ARROW_CONTENT_BYTES // max(1, plan.largest_bytes)))
        return prepared.listing.read_contents(work, at_once)
    tasks = _task_count(plan, prepared.recipe, parallelism(prepared.spark))
    return work.repartition(tasks).sortWithinPartitions(F.xxhash64(schema.PATH))


def _task_count(plan: Plan, recipe: Recipe, slots: int) -> int:
    """Chooses how many tasks share a batch: every slot busy, files neither tiny nor larger than the target."""
    pixels = recipe.size * recipe.size
    per_row = {"raw_rgb": 3 * pixels, "jpeg": pixels // 4}.get(recipe.store, plan.work_bytes // max(1, plan.work))
    by_bytes = math.ceil(plan.work * per_row / schema.TARGET_FILE_BYTES)
    by_slots = min(2 * slots, math.ceil(plan.work / _SMALLEST_TASK_ROWS))
    return max(1, by_bytes, by_slots)


_ROWS = "rows"
_PROBLEM = "problem"


@dataclass(frozen=True)
class DecodedFiles:
    """The files of a plan after they were read."""

    task: BatchTask  # What the tasks that read them know
    outcomes: DataFrame  # Rows of `schema.OUTCOMES`, kept on the executors' disks
    in_splits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # Number of rows by split, then by class
    refused: Mapping[str, int] = field(default_factory=dict)  # Number of files that cannot be stored, by reason
    # Files that had a row and will have none, by the row's class and the reason
    lost: Mapping[tuple[str, str], int] = field(default_factory=dict)
    # Repaired and dropped boxes by reason, most frequent first
    repairs: Mapping[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> DataFrame:
        """The rows of `schema.IMAGE_TABLE`."""
        return self.outcomes.where("reason IS NULL").select(*schema.IMAGE_TABLE.names)

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of rows by class."""
        return sum(map(Counter, self.in_splits.values()), Counter[str]())

    @property
    def stored(self) -> int:
        """Number of rows."""
        return sum(self.counts.values())


@contextmanager
def decoded_files(prepared: Prepared, batch_id: str, name: str) -> Iterator[DecodedFiles]:
    """Reads the files that are to be read; Spark keeps the rows on the executors' disks for the block.

    So a loss is found before the commit, the history has exact counts, and bad files alone make no version.
    """
    from pyspark import StorageLevel

    plan, request, spark = prepared.plan, prepared.request, prepared.spark
    good, bad = counter(spark), counter(spark)
    with image_progress(name, plan.work, lambda: (good.value + bad.value, bad.value)) as count_file:
        task = BatchTask(
            prepared.recipe,
            request.limits,
            dict(prepared.reserve_classes()),
            batch_id,
            has_annotations=prepared.listing.has_annotations,
            classes=None if request.classes is None else frozenset(request.classes),
            drop_bad_boxes=request.drop_bad_boxes,
            count_file=count_file,
            done=(good, bad),
        )
        if not plan.work:
            yield DecodedFiles(task, local_frame(spark, [], schema.ddl_of(schema.OUTCOMES)))
            return
        outcomes = map_in_arrow(_dealt_work(prepared), task.outcomes, schema.ddl_of(schema.OUTCOMES))
        with kept(outcomes, StorageLevel.DISK_ONLY) as outcomes:
            yield _counted(task, outcomes)


def _counted(task: BatchTask, outcomes: DataFrame) -> DecodedFiles:
    from pyspark.sql import functions as F

    refused = Counter[str]()
    lost = Counter[tuple[str, str]]()
    in_splits: dict[str, Counter[str]] = {}
    repairs = Counter[str]()
    # A file is counted in the row without a problem, and each of its problems in one more row.
    problems = F.coalesce(F.col(schema.PROBLEMS), F.array().cast("array<string>"))
    counted = outcomes.withColumn(_PROBLEM, F.explode(F.concat(F.array(F.lit(None).cast("string")), problems)))
    groups = counted.groupBy("reason", "stored_class", schema.LABEL_NAME, schema.SPLIT, _PROBLEM)
    for row in groups.agg(F.count("*").alias(_ROWS)).collect():
        if row[_PROBLEM] is not None:
            repairs[row[_PROBLEM]] += row[_ROWS]
            continue
        if row["reason"] is None:
            in_splits.setdefault(row[schema.SPLIT], Counter())[row[schema.LABEL_NAME] or NO_CLASS] += row[_ROWS]
            continue
        refused[row["reason"]] += row[_ROWS]
        if row["stored_class"] is not None:
            lost[row["stored_class"], row["reason"]] += row[_ROWS]
    return DecodedFiles(task, outcomes, in_splits, refused, lost, dict(repairs.most_common()))
