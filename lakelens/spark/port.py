"""The one module that knows `sparkContext` and `_jvm`: counting slots, shipping files, barrier stages, the JVM.

Spark Connect has neither. What lakelens needs of them is here, so that another way to it has one place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import Accumulator, Broadcast
    from pyspark.accumulators import AccumulatorParam
    from pyspark.sql import SparkSession

_JOB_GROUP = "spark.jobGroup.id"


def parallelism(spark: SparkSession) -> int:
    """Returns how many tasks Spark makes of work that has no partitions: the cores, unless a setting names another."""
    return int(spark.sparkContext.defaultParallelism)


def master_of(spark: SparkSession) -> str:
    """Returns the Spark master URL."""
    return str(spark.sparkContext.master)


def is_local(spark: SparkSession) -> bool:
    """Whether executors run on this machine: `local[...]` or `local-cluster[...]`."""
    return master_of(spark).startswith("local")


def application_of(spark: SparkSession) -> str:
    """Returns the id of the Spark application."""
    return str(spark.sparkContext.applicationId)


def is_running(spark: SparkSession) -> bool:
    """Whether a session has not been stopped."""
    return spark.sparkContext._jsc is not None


def setting_of(spark: SparkSession, key: str, default: str | None = None) -> str | None:
    """Returns a setting that the application was started with."""
    value: str | None = spark.sparkContext.getConf().get(key, default)
    return value


def set_log_level(spark: SparkSession, level: str) -> None:
    """Sets what Spark logs: `ERROR`, `OFF` or another level of log4j."""
    spark.sparkContext.setLogLevel(level)


def set_pool(spark: SparkSession, name: str) -> None:
    """Puts the jobs of this thread into a pool of the fair scheduler."""
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)


def tag_jobs(spark: SparkSession, tag: str) -> None:
    """Tags the jobs of this thread, for `cancel_jobs`."""
    spark.sparkContext.addJobTag(tag)


def cancel_jobs(spark: SparkSession, tag: str) -> None:
    """Cancels the jobs with a tag."""
    spark.sparkContext.cancelJobsWithTag(tag)


def other_jobs(spark: SparkSession) -> int:
    """Counts the running jobs of the application but one."""
    return max(0, len(spark.sparkContext.statusTracker().getActiveJobsIds()) - 1)


def has_running_tasks(spark: SparkSession, tag: str) -> bool:
    """Whether a task of a job with a tag is running."""
    tracker = spark.sparkContext.statusTracker()
    for job in spark.sparkContext._jsc.sc().statusTracker().getJobIdsForTag(tag):
        info = tracker.getJobInfo(job)
        stages = [tracker.getStageInfo(stage) for stage in (info.stageIds if info else [])]
        if any(stage is not None and stage.numActiveTasks > 0 for stage in stages):
            return True
    return False


def run_barrier(
    spark: SparkSession, body: Callable[[Iterator[int]], Iterator[Any]], tasks: int, tag: str, description: str
) -> list[Any]:
    """Runs a function as one barrier stage and returns what its tasks yield.

    The job is cancelled by `cancel_jobs` with the tag, and with the job group of the calling thread where it has one.

    Args:
        spark: The session.
        body: Called in each task with its number.
        tasks: Number of tasks, which all run at the same time.
        tag: Tag of the job.
        description: What Spark's UI shows.
    """
    context = spark.sparkContext
    context.addJobTag(tag)
    if context.getLocalProperty(_JOB_GROUP) is None:
        context.setJobGroup(tag, description, interruptOnCancel=True)
    else:
        context.setJobDescription(description)
    returned: list[Any] = context.parallelize(range(tasks), tasks).barrier().mapPartitions(body).collect()
    return returned


def run_tasks(spark: SparkSession, body: Callable[[Iterator[int]], Iterator[Any]], tasks: int) -> list[Any]:
    """Runs a function in tasks of Python workers and returns what they yield."""
    returned: list[Any] = spark.sparkContext.parallelize(range(tasks), tasks).mapPartitions(body).collect()
    return returned


def broadcast(spark: SparkSession, value: Any) -> Broadcast[Any]:
    """Sends a value to every executor."""
    return spark.sparkContext.broadcast(value)


def counter(spark: SparkSession, zero: Any = 0, param: AccumulatorParam[Any] | None = None) -> Accumulator[Any]:
    """Returns an accumulator: tasks add, the driver reads `.value`."""
    return spark.sparkContext.accumulator(zero, param)


def ship_file(spark: SparkSession, file: Path) -> None:
    """Makes a file available on every executor under its name (`SparkFiles.get`); an existing name stays."""
    context = spark.sparkContext
    if not any(uri.rsplit("/", 1)[-1] == file.name for uri in context.listFiles):
        context.addFile(str(file))


def ship_package(spark: SparkSession, archive: Path) -> None:
    """Puts a ZIP archive of Python modules onto the path of every executor's Python."""
    spark.sparkContext.addPyFile(str(archive))


def take_jars_off_path(spark: SparkSession) -> None:
    """Takes the JARs of packages off the path on which this process and the Python workers look for modules.

    Spark puts them there, because a few hold modules. A worker would read the directory of each before every task:
    45,000 entries for Delta 4.3, 0.2 s of processor time.
    """
    context = spark.sparkContext
    context._python_includes = [name for name in context._python_includes if not name.endswith(".jar")]
    sys.path[:] = [entry for entry in sys.path if not entry.endswith(".jar")]


def temporary_folder(spark: SparkSession) -> Path:
    """Returns a folder that Spark removes when the session stops."""
    return Path(spark.sparkContext._temp_dir)


def python_of(spark: SparkSession) -> str:
    """Returns the interpreter that Python workers run on."""
    return str(spark.sparkContext.pythonExec)


def jvm(spark: SparkSession) -> Any:
    """Returns the packages of the driver's JVM; None in a session that has none."""
    return spark._jvm


def java_session(spark: SparkSession) -> Any:
    """Returns the session as the JVM knows it."""
    return spark._jsparkSession


def java_context(spark: SparkSession) -> Any:
    """Returns Spark's context as the JVM knows it."""
    return spark.sparkContext._jsc.sc()


def java_broadcast(spark: SparkSession, value: Any) -> Any:
    """Sends a value of the JVM to every executor."""
    return spark.sparkContext._jsc.broadcast(value)


def cloned_session(spark: SparkSession) -> SparkSession:
    """Returns a session with the same temporary views and settings, which can be changed by themselves."""
    from pyspark.sql import SparkSession as Session

    return Session(spark.sparkContext, spark._jsparkSession.cloneSession())


@contextmanager
def as_active_session(spark: SparkSession) -> Iterator[None]:
    """Makes a session this thread's active one, as `createDataFrame` does, and the caller's again at the end."""
    sessions: Any = spark._jvm.SparkSession
    before = sessions.getActiveSession()
    known = type(spark)._activeSession
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        type(spark)._activeSession = known
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


@contextmanager
def without_logs(spark: SparkSession) -> Iterator[None]:
    """Keeps Spark from logging the stack of a worker that cannot start, whose reason is raised."""
    log4j = spark._jvm.org.apache.logging.log4j
    level = log4j.LogManager.getRootLogger().getLevel()
    # Not `setLogLevel`: with it Spark forgets that it shows warnings alone, and would log each task from then on.
    configurator = log4j.core.config.Configurator
    configurator.setRootLevel(log4j.Level.OFF)
    try:
        yield
    finally:
        configurator.setRootLevel(level)
