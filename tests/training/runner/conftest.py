"""Runners on the driver or on the shared session, and what their ranks leave behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyspark
import pytest
from leftovers import Watch, leaves_nothing, wait_until

from lakelens.spark.port import is_connect
from lakelens.training.runner.runner import HorovodRunner
from lakelens.training.runner.spark.slots import registered_now


@pytest.fixture
def watch(spark) -> Iterator[Watch]:
    """Checks that no process, port, file or Spark job of the ranks is left."""
    if spark is None:
        with leaves_nothing() as watch:
            yield watch
        return
    if is_connect(spark) and pyspark.__version__.startswith("3."):
        pytest.skip("the client of Spark 3.5 does not learn that tasks run, and is refused")
    # An executor that starts late, and the Python daemons that a first task starts, stay.
    if is_connect(spark):
        spark.range(0, 4, 1, 4).mapInArrow(lambda batches: batches, "id LONG").collect()
    else:
        wait_until(lambda: registered_now(spark).executors >= 2, 300)
        spark.sparkContext.parallelize(range(4), 4).map(lambda number: number).count()
    with leaves_nothing(same_process_tree=not is_connect(spark)) as watch:
        yield watch
    if is_connect(spark):
        return
    wait_until(lambda: not spark.sparkContext.statusTracker().getActiveJobsIds())


@pytest.fixture
def runner(spark, watch) -> Callable[..., HorovodRunner]:
    """Gives a function that makes a runner, whose ranks `watch` finds."""

    def make(np: int = 2, **options: Any) -> HorovodRunner:
        return HorovodRunner(np=-np if spark is None else np, env=watch.env, spark=spark, **options)

    return make
