"""Progress bars: on the driver only, silent when the output is not a terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tqdm import tqdm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_S = 0.5
_JOIN_S = 5.0


@contextmanager
def spark_progress(spark: SparkSession, description: str) -> Iterator[None]:
    """Shows on stderr how many tasks of the running Spark stages are done, while the body runs.

    Args:
        spark: The session whose stages are watched, those of other threads included.
        description: What is under way, shown left of the bar.
    """
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    bar = tqdm(desc=description, unit="task", file=sys.stderr, leave=False)
    watcher = threading.Thread(target=_watch, args=(spark, bar, done), name="lakelens-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join(_JOIN_S)
        bar.close()


def _watch(spark: SparkSession, bar: tqdm[None], done: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not done.wait(_POLL_S):
        stages = [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage)) is not None]
        if stages:
            bar.total = sum(stage.numTasks for stage in stages)
            bar.n = sum(stage.numCompletedTasks for stage in stages)
        bar.refresh()
