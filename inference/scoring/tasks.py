"""Divides a scoring run into Spark tasks and Arrow batches."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A Python worker imports TensorFlow (about 3 CPU seconds) before its first row. From about this size on a task is worth
# that: a network of 2 to 60 thousand operations per pixel takes 0.5 to 10 s for it on one core.
_PIXELS_PER_TASK = 4 << 20

_ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_MOST_ARROW_ROWS = 10_000  # Spark's own default
# If the log does not have the size of rows: 32 MB of images of 500 kB each.
_UNKNOWN_ARROW_ROWS = 64


def tasks_for(rows: int, input_shape: tuple[int, int, int], slots: int) -> int:
    """Chooses a number of tasks between 1 and the slots, each with enough work to be worth a worker's start."""
    pixels = rows * input_shape[0] * input_shape[1]
    return max(1, min(slots, -(-pixels // _PIXELS_PER_TASK)))


def spread(
    rows: DataFrame, *, row_count: int, input_shape: tuple[int, int, int], slots: int, row_groups: int | None
) -> DataFrame:
    """Divides a DataFrame of images into tasks according to its work.

    Little work makes few tasks. Much work in too few row groups (a large model on one small file) is shuffled
    onto more tasks; otherwise Spark's own partitions stay, without a shuffle.
    """
    wanted = tasks_for(row_count, input_shape, slots)
    if row_groups is not None and row_groups * 2 <= wanted:
        return rows.repartition(wanted)
    return rows.coalesce(wanted) if wanted < slots else rows


def arrow_rows(batch_bytes: int, mean_row_bytes: float | None) -> int:
    """Rows per Arrow batch that hold about `batch_bytes` of stored images."""
    if mean_row_bytes is None:
        return _UNKNOWN_ARROW_ROWS
    return max(1, min(_MOST_ARROW_ROWS, int(batch_bytes / max(1.0, mean_row_bytes))))


class _Bounds:
    """The active limits per session; the session's own setting is restored when the last one ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._before: dict[SparkSession, str | None] = {}
        self._rows: dict[SparkSession, list[int]] = {}

    def add(self, spark: SparkSession, rows: int) -> None:
        with self._lock:
            if spark not in self._before:
                self._before[spark] = spark.conf.get(_ARROW_ROWS, None)
            self._rows.setdefault(spark, []).append(rows)
            self._apply(spark)

    def remove(self, spark: SparkSession, rows: int) -> None:
        with self._lock:
            self._rows[spark].remove(rows)
            self._apply(spark)

    def _apply(self, spark: SparkSession) -> None:
        if self._rows[spark]:
            spark.conf.set(_ARROW_ROWS, str(min(self._rows[spark])))
            return
        del self._rows[spark]
        before = self._before.pop(spark)
        if before is None:
            spark.conf.unset(_ARROW_ROWS)
        else:
            spark.conf.set(_ARROW_ROWS, before)


_bounds = _Bounds()


@contextmanager
def bounded_arrow_batches(spark: SparkSession, rows: int) -> Iterator[None]:
    """Limits Arrow batches to `rows` rows for queries that start in the body.

    Spark has only a session-wide setting for this. If several threads are in such a body at once, the smallest limit
    holds for all.
    """
    _bounds.add(spark, rows)
    try:
        yield
    finally:
        _bounds.remove(spark, rows)
