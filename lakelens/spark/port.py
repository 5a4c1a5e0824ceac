"""The one module that may use `sparkContext`, `_jvm` or `.rdd`: counting slots, shipping files, barrier stages.

A Spark Connect session has none of them: its driver is another process. Each function describes what needs them.
"""

from __future__ import annotations

import atexit
import functools
import json
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, overload

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import Broadcast, StorageLevel
    from pyspark.sql import DataFrame, SparkSession

_JOB_GROUP = "spark.jobGroup.id"
# Spark divides a range by its slots; this many rows leave no part empty.
_RANGE_ROWS = 10_000
_PARTS_OF_RANGE = re.compile(r"\bRange \(.*\bsplits=(?:Some\()?(\d+)")


def is_connect(spark: Any) -> bool:
    """Whether a session is a Spark Connect session, whose driver is another process."""
    return "connect" in type(spark).__module__.split(".")


def parallelism(spark: SparkSession) -> int:
    """Returns how many tasks Spark makes of work that has no partitions: the cores, unless a setting names another."""
    if not is_connect(spark):
        return int(spark.sparkContext.defaultParallelism)
    return _slots_of_server(spark)


@functools.lru_cache(maxsize=4)
def _slots_of_server(spark: SparkSession) -> int:
    """Asks a Connect server once, with a job: the first answer holds, even if the server grows later."""
    from pyspark.sql import functions as F

    parts = spark.range(_RANGE_ROWS).select(F.spark_partition_id().alias("part"))
    return int(parts.agg(F.max("part")).collect()[0][0]) + 1


def slots_of_server(spark: SparkSession) -> int:
    """Returns how many tasks a Connect server runs at once, as far as it tells; without a job, which might wait."""
    # The parts of a range: its cores, or `spark.default.parallelism` where that is set.
    plan: str = spark.range(_RANGE_ROWS)._explain_string()
    found = _PARTS_OF_RANGE.search(plan)
    parts = parallelism(spark) if found is None else int(found[1])
    return parts // int(option_of(spark, "spark.task.cpus", "1"))


def master_of(spark: SparkSession) -> str:
    """Returns the Spark master URL; "" where a Connect server does not tell."""
    if is_connect(spark):
        return option_of(spark, "spark.master", "")
    return str(spark.sparkContext.master)


def is_local(spark: SparkSession) -> bool:
    """Whether executors run on this machine: `local[...]` or `local-cluster[...]`."""
    return master_of(spark).startswith("local")


def application_of(spark: SparkSession) -> str:
    """Returns the id of the Spark application; of a Connect session the session's, as a server may not give one."""
    if is_connect(spark):
        return str(spark.session_id)
    return str(spark.sparkContext.applicationId)


def is_running(spark: SparkSession) -> bool:
    """Whether a session has not been stopped."""
    if is_connect(spark):
        return not spark.is_stopped
    return spark.sparkContext._jsc is not None


def keep_session(spark: SparkSession) -> None:
    """Asks a Connect server for an option: it closes a session that asks for nothing for an hour."""
    if is_connect(spark):
        option_of(spark, "spark.sql.session.timeZone")


def setting_of(spark: SparkSession, key: str) -> str | None:
    """Returns a setting that the application was started with."""
    if is_connect(spark):
        return option_of(spark, key)
    value: str | None = spark.sparkContext.getConf().get(key)
    return value


@overload
def option_of(spark: SparkSession, name: str, default: str) -> str: ...
@overload
def option_of(spark: SparkSession, name: str, default: str | None = None) -> str | None: ...
def option_of(spark: SparkSession, name: str, default: str | None = None) -> str | None:
    """Returns an option of a session; the default also where a Connect server refuses it, as on serverless compute."""
    found: str | None = default
    with _refusable(spark):
        found = spark.conf.get(name, default)
    return found  # noqa: RET504  the default, if the block was refused


def set_log_level(spark: SparkSession, level: str) -> None:
    """Sets what Spark logs: `ERROR`, `OFF` or another level of log4j; a Connect server logs as it was started."""
    if not is_connect(spark):
        spark.sparkContext.setLogLevel(level)


def set_pool(spark: SparkSession, name: str) -> None:
    """Puts the jobs of this thread into a pool of the fair scheduler."""
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)


def tag_jobs(spark: SparkSession, tag: str) -> None:
    """Tags the jobs of this thread, for `cancel_jobs`."""
    if is_connect(spark):
        spark.addTag(tag)
    else:
        spark.sparkContext.addJobTag(tag)


def cancel_jobs(spark: SparkSession, tag: str) -> None:
    """Cancels the jobs with a tag."""
    if is_connect(spark):
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)


def other_jobs(spark: SparkSession) -> int | None:
    """Counts the running jobs of the application but one; None where a Connect server does not tell."""
    if is_connect(spark):
        return None
    return max(0, len(spark.sparkContext.statusTracker().getActiveJobsIds()) - 1)


def has_running_tasks(spark: SparkSession, tag: str) -> bool:
    """Whether a task of a barrier job with a tag is running; `run_barrier` reports that in a Connect session."""
    if is_connect(spark):
        return False
    tracker = spark.sparkContext.statusTracker()
    for job in spark.sparkContext._jsc.sc().statusTracker().getJobIdsForTag(tag):
        info = tracker.getJobInfo(job)
        stages = [tracker.getStageInfo(stage) for stage in (info.stageIds if info else [])]
        if any(stage is not None and stage.numActiveTasks > 0 for stage in stages):
            return True
    return False


def reports_progress(spark: SparkSession) -> bool:
    """Whether a Connect server reports the running tasks of a query, as Spark 4.0 does if no setting forbids it."""
    interval = option_of(spark, "spark.connect.progress.reportInterval", "2s")
    return int(spark.version.partition(".")[0]) >= 4 and re.match(r"-|0+\D*$", interval) is None


def session_thread(spark: SparkSession, target: Callable[[], None], name: str) -> threading.Thread:
    """Makes a thread to which the caller's scheduler pool and job group apply, or its tags in a Connect session."""
    if not is_connect(spark):
        from pyspark import InheritableThread

        thread: threading.Thread = InheritableThread(target=target, name=name, daemon=True)
        return thread
    tags = spark.getTags()

    def tagged() -> None:
        for tag in tags:
            spark.addTag(tag)
        target()

    return threading.Thread(target=tagged, name=name, daemon=True)


def run_barrier(
    spark: SparkSession,
    body: Callable[[Iterable[Any]], Iterator[bytes]],
    tasks: int,
    tag: str,
    description: str,
    on_running: Callable[[], None],
) -> list[bytes]:
    """Runs a function as one barrier stage, which `cancel_jobs` ends by its tag; returns what its tasks yield."""
    if is_connect(spark):
        spark.addTag(tag)
        with _watched(spark, on_running):
            rows = spark.range(0, tasks, 1, tasks).mapInArrow(_as_rows(body), "piece BINARY", barrier=True).collect()
        return [bytes(row["piece"]) for row in rows]
    context = spark.sparkContext
    context.addJobTag(tag)
    if context.getLocalProperty(_JOB_GROUP) is None:
        context.setJobGroup(tag, description, interruptOnCancel=True)
    else:
        context.setJobDescription(description)
    returned: list[bytes] = context.parallelize(range(tasks), tasks).barrier().mapPartitions(body).collect()
    return returned


@contextmanager
def _watched(spark: Any, on_running: Callable[[], None]) -> Iterator[None]:
    """Reports when tasks of this thread's query run."""
    thread = threading.current_thread()

    def hear(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        if inflight_tasks > 0 and threading.current_thread() is thread:
            on_running()

    spark.registerProgressHandler(hear)
    try:
        yield
    finally:
        spark.removeProgressHandler(hear)


def run_tasks(spark: SparkSession, body: Callable[[Iterator[int]], Iterator[Any]], tasks: int) -> list[Any]:
    """Runs a function in tasks of Python workers and returns what they yield, which JSON can hold."""
    if is_connect(spark):
        rows = spark.range(0, tasks, 1, tasks).mapInArrow(_as_arrow(body), "value STRING").collect()
        return [json.loads(row["value"]) for row in rows]
    returned: list[Any] = spark.sparkContext.parallelize(range(tasks), tasks).mapPartitions(body).collect()
    return returned


def broadcast(spark: SparkSession, value: _Carried) -> Broadcast[_Carried] | Inline[_Carried]:
    """Sends a value to every executor; in a Connect session with the function that uses it."""
    if is_connect(spark):
        return Inline(value)
    return spark.sparkContext.broadcast(value)


_Term = TypeVar("_Term")
_Carried = TypeVar("_Carried")


@dataclass(frozen=True)
class Inline(Generic[_Carried]):
    """A value that travels with each function that uses it, in the place of a broadcast variable."""

    value: _Carried

    def destroy(self) -> None:
        """Does nothing: it ends with the function."""


class TaskSum(Protocol[_Term]):
    """Tasks add, the driver reads `value`."""

    @property
    def value(self) -> _Term:
        """What the tasks that have ended have added."""

    def add(self, term: _Term) -> None:
        """Adds, in a task."""


@dataclass(frozen=True)
class _Unseen(Generic[_Term]):
    """The sum of a Connect session, whose tasks report nothing to the client before the job ends: it never changes."""

    value: _Term

    def add(self, term: _Term) -> None:
        pass


TaskCounter: TypeAlias = TaskSum[int]
TaskNames: TypeAlias = TaskSum[frozenset[str]]


class _Union:
    """Joins sets, as an `AccumulatorParam`, which is not imported before pyspark is."""

    def zero(self, value: frozenset[str]) -> frozenset[str]:
        return frozenset()

    def addInPlace(self, value1: frozenset[str], value2: frozenset[str]) -> frozenset[str]:
        return value1 | value2


def names_of_tasks(spark: SparkSession) -> TaskNames:
    """Returns what brings names from tasks to the driver; in a Connect session none arrive."""
    if is_connect(spark):
        return _Unseen(frozenset())
    param: Any = _Union()  # pyspark looks at its two methods alone
    names: TaskNames = spark.sparkContext.accumulator(frozenset(), param)
    return names


def counter(spark: SparkSession) -> TaskCounter:
    """Returns a counter for tasks; that of a Connect session stays 0."""
    if is_connect(spark):
        return _Unseen(0)
    count: TaskCounter = spark.sparkContext.accumulator(0)
    return count


def count_rows(frame: DataFrame) -> int:
    """Counts rows. A Connect client of Spark 3.5 gives an integer of NumPy, which JSON does not take."""
    return int(frame.count())


# The files that Connect servers have, by session and name.
_sent: set[tuple[str, str]] = set()


def ship_file(spark: SparkSession, file: Path) -> None:
    """Makes a file available on every executor under its name (`SparkFiles.get`); an existing name stays."""
    if is_connect(spark):
        key = (spark.session_id, file.name)
        if key not in _sent:  # a server of Spark 3.5 refuses a name that it has
            spark.addArtifacts(str(file), file=True)
            _sent.add(key)
        return
    context = spark.sparkContext
    if not any(uri.rsplit("/", 1)[-1] == file.name for uri in context.listFiles):
        context.addFile(str(file))


def ship_package(spark: SparkSession, archive: Path) -> None:
    """Puts a ZIP archive of Python modules onto the path of every executor's Python."""
    if is_connect(spark):
        spark.addArtifacts(str(archive), pyfile=True)
        return
    spark.sparkContext.addPyFile(str(archive))


def take_jars_off_path(spark: SparkSession) -> None:
    """Takes the JARs of packages off the path on which this process and the Python workers look for modules."""
    # A worker's first import reads the directory of each: 45,000 entries for Delta 4.3, 0.1 to 0.2 s of processor time.
    context = spark.sparkContext
    context._python_includes = [name for name in context._python_includes if not name.endswith(".jar")]
    sys.path[:] = [entry for entry in sys.path if not entry.endswith(".jar")]


def temporary_folder(spark: SparkSession) -> Path:
    """Returns a folder that is removed when the session stops, or when this process ends."""
    if is_connect(spark):
        return _folder_of(spark.session_id)
    return Path(spark.sparkContext._temp_dir)


def python_of(spark: SparkSession) -> str:
    """Returns the interpreter that Python workers run on."""
    if is_connect(spark):
        return "the server's choice"
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
    """Returns a session with equal views and settings, to change separately; of a Connect session the same one."""
    # No server before 4.1 clones one, and no clone has its artifacts: use `settings_of` and `kept_settings` there.
    if is_connect(spark):
        return spark
    from pyspark.sql import SparkSession as Session

    return Session(spark.sparkContext, spark._jsparkSession.cloneSession())


@contextmanager
def kept_settings(spark: SparkSession | None, names: Collection[str]) -> Iterator[None]:
    """Gives a Connect session its settings back at the end; a classic session is cloned before they are changed."""
    # Other threads that use the Connect session wait meanwhile: they would work with these settings.
    if spark is None or not is_connect(spark):
        yield
        return
    with _lock_of(spark.session_id), _restored(spark, names):
        yield


@functools.cache
def _lock_of(session_id: str) -> threading.RLock:
    return threading.RLock()


@contextmanager
def settings_of(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Sets options of a session for a block, as far as `set_all` can."""
    with _restored(spark, settings):
        set_all(spark, settings)
        yield


@contextmanager
def _restored(spark: SparkSession, names: Collection[str]) -> Iterator[None]:
    before: dict[str, str | None] = {name: option_of(spark, name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            if value != option_of(spark, name):
                _set(spark, name, value)


def set_all(spark: SparkSession, settings: Mapping[str, str]) -> None:
    """Sets options of a session; leaves out those that a Connect server refuses, as serverless compute does."""
    for name, value in settings.items():
        _set(spark, name, value)


def _set(spark: SparkSession, name: str, value: str | None) -> None:
    with _refusable(spark):
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


@contextmanager
def _refusable(spark: SparkSession) -> Iterator[None]:
    """Ends the block without an error where a Connect server refuses it, as serverless compute does."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException:
        if not is_connect(spark):
            raise


# Of each work that `forgetting` wraps, the frames that were forgotten while another one was under way.
_forgotten: list[list[DataFrame]] = []
_LOCK = threading.Lock()


def keep(frame: DataFrame, level: StorageLevel | None = None) -> DataFrame:
    """Has Spark keep the rows of a DataFrame until `forget`; serverless compute refuses and computes them again."""
    with _refusable(frame.sparkSession):
        if level is None:
            frame.persist()
        else:
            frame.persist(level)
    return frame


def forget(frame: DataFrame) -> None:
    """Lets Spark forget the rows of a DataFrame that `keep` has returned."""
    with _refusable(frame.sparkSession):
        frame.unpersist()
    with _LOCK:
        if len(_forgotten) > 1:
            for frames in _forgotten:
                frames.append(frame)


@contextmanager
def forgetting() -> Iterator[None]:
    """Wraps work that may write a table; at its end Spark keeps no rows that `forget` was called for meanwhile."""
    # A commit takes all kept rows that read its table out of Spark's cache, and puts them back to be computed again.
    # What another thread forgets between the two would stay.
    own: list[DataFrame] = []
    with _LOCK:
        _forgotten.append(own)
    try:
        yield
    finally:
        with _LOCK:
            _forgotten[:] = [frames for frames in _forgotten if frames is not own]
        for frame in own:
            with _refusable(frame.sparkSession):
                frame.unpersist()


@contextmanager
def kept(frame: DataFrame, level: StorageLevel | None = None) -> Iterator[DataFrame]:
    """Keeps the rows of a DataFrame for a block, as `keep` does."""
    frame = keep(frame, level)
    try:
        yield frame
    finally:
        forget(frame)


@contextmanager
def as_active_session(spark: SparkSession) -> Iterator[None]:
    """Makes a session this thread's active one, as `createDataFrame` does, and the caller's again at the end."""
    if is_connect(spark):
        yield
        return
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
    """Keeps Spark from logging the stack of a worker or a task, whose reason is raised."""
    if is_connect(spark):
        yield
        return
    log4j = spark._jvm.org.apache.logging.log4j
    level = log4j.LogManager.getRootLogger().getLevel()
    # Not `setLogLevel`: with it Spark forgets that it shows warnings alone, and would log each task from then on.
    configurator = log4j.core.config.Configurator
    configurator.setRootLevel(log4j.Level.OFF)
    try:
        yield
    finally:
        with suppress(Exception):  # a JVM that has ended logs nothing, and its end is not the reason
            configurator.setRootLevel(level)


@functools.cache
def _folder_of(session_id: str) -> Path:
    folder = tempfile.mkdtemp(prefix="lakelens-session-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _as_arrow(body: Callable[[Iterator[int]], Iterator[Any]]) -> Callable[..., Iterator[pa.RecordBatch]]:
    """Makes what `mapInArrow` runs of a function; pickled by value, since a worker may lack this module."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import json

        import pyarrow as pa

        numbers = (number for batch in batches for number in batch.column(0).to_pylist())
        values = [json.dumps(value) for value in body(numbers)]
        yield pa.RecordBatch.from_arrays([pa.array(values, pa.string())], ["value"])

    return run


def _as_rows(body: Callable[[Iterable[Any]], Iterator[bytes]]) -> Callable[..., Iterator[pa.RecordBatch]]:
    """Makes what `mapInArrow` runs of a function that yields bytes; pickled by value, as `_as_arrow`."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for piece in body(number for batch in batches for number in batch.column(0).to_pylist()):
            yield pa.RecordBatch.from_arrays([pa.array([piece], pa.binary())], ["piece"])

    return run
