"""The Spark jobs that a block of a test starts, whatever session or thread starts them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Delta reads the log of a version once, by a job, whoever asks for the version first.
_OF_DELTA_ALONE = "Compute snapshot"


@contextmanager
def jobs_of(spark: SparkSession) -> Iterator[list[str]]:
    """Gives a list that holds, after the block, what each of its jobs is called; Delta's reading of its log is left out.

    Args:
        spark: A classic session; jobs of other threads of its application are counted too.
    """
    context = spark._jsc.sc() if hasattr(spark, "_jsc") else spark.sparkContext._jsc.sc()
    before = set(_jobs(context))
    named: list[str] = []
    yield named
    found = _jobs(context)
    named += [found[number] for number in sorted(found.keys() - before) if _OF_DELTA_ALONE not in found[number]]


def _jobs(context: Any) -> dict[int, str]:
    context.listenerBus().waitUntilEmpty()
    jobs = context.statusStore().jobsList(None)
    found = {}
    for index in range(jobs.size()):
        job = jobs.apply(index)
        description = job.description()
        found[job.jobId()] = f"{job.name()} ({description.get() if description.isDefined() else ''})"
    return found
