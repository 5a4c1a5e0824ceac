"""Counts the Spark jobs that a block of a test starts, on whatever thread or cloned session it starts them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Jobs:
    """The jobs of a block, each with its description and call site; filled when the block ends."""

    sites: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.sites)

    def __str__(self) -> str:
        return "\n".join([f"{len(self)} Spark jobs:", *self.sites])


@contextmanager
def jobs_of(spark: SparkSession) -> Iterator[Jobs]:
    """Counts the jobs of the application of a classic session.

    With `jobs` as the result, `assert len(jobs) <= 1, str(jobs)` says where each job came from.
    """
    context = spark.sparkContext._jsc.sc()
    before = {job.jobId() for job in _finished_events(context)}
    jobs = Jobs()
    try:
        yield jobs
    finally:
        started = [job for job in _finished_events(context) if job.jobId() not in before]
        jobs.sites += [_site(job) for job in sorted(started, key=lambda job: job.jobId())]


def _finished_events(context: Any) -> list[Any]:
    """The jobs that the status store knows, once it has heard of all that the scheduler did."""
    context.listenerBus().waitUntilEmpty()
    jobs = context.statusStore().jobsList(None)
    return [jobs.apply(at) for at in range(jobs.size())]


def _site(job: Any) -> str:
    description = job.description()
    words = " ".join(description.get().split()) if description.isDefined() else ""
    return f"{job.jobId()}: {job.name()} | {words[:200]}"


def failed_tasks(spark: SparkSession) -> int:
    """Counts the failed tasks of the application of a classic session."""
    executors: Any = spark.sparkContext._jsc.sc().statusStore().executorList(False)
    return sum(int(executors.apply(index).failedTasks()) for index in range(executors.size()))
