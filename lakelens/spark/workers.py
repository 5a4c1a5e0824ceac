"""Spark's Python workers: tasks that leave theirs ready for the next, and whether workers run the driver's lakelens.

Between two tasks a worker of PySpark collects garbage and invalidates the caches of its importers. The collector walks
over all modules that are loaded (20 ms), and Python before 3.13 reads the directory of pyspark.zip once for each
package that came from it (80 ms): more than a task on a small table takes itself.

A session that lakelens has not started may run its workers on any interpreter. Without a check the first task that
imports lakelens would fail, after the driver's part of the work and in the middle of Spark's stack traces.
"""

from __future__ import annotations

import functools
import gc
import platform
import re
import sys
import threading
import zipimport
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ClusterConfigurationError, SessionError
from ..extras import missing_dependency
from .port import application_of, parallelism, python_of, run_tasks, without_logs
from .session import ship_wheel

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    Task = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]

_modules_at_rest = 0


def map_in_arrow(frame: DataFrame, task: Task, columns: str | StructType) -> DataFrame:
    """Applies a function to the Arrow batches of each partition, as `DataFrame.mapInArrow` does."""
    return frame.mapInArrow(functools.partial(_run, task), columns)


def _run(task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        yield from task(batches)
    finally:
        _rest()


def _rest() -> None:
    """Forgets the importers of archives, which the next import makes again; the collector skips what is loaded."""
    global _modules_at_rest
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimport.zipimporter):
            del sys.path_importer_cache[path]
    if len(sys.modules) != _modules_at_rest:
        _modules_at_rest = len(sys.modules)
        gc.collect()
        gc.freeze()


# Each starts a Python worker, which the work that follows uses again.
_MOST_ASKED = 16
_MAX_REASON_CHARACTERS = 500
# Spark's messages about a job that a cancelled cell or the end of its session has ended.
CANCELLED = re.compile(r"\bJob \d+ cancelled\b|\bOPERATION_CANCELED\b")
# What was found in order: application, interpreter and packages.
_checking = threading.Lock()
_checked: set[tuple[str, str, tuple[str, ...]]] = set()


def check_workers(spark: SparkSession, call: str, modules: Sequence[str]) -> None:
    """Asks Python workers once what they run; sends the driver's wheel first, if it has one."""
    ship_wheel(spark)
    key = (application_of(spark), python_of(spark), tuple(modules))
    with _checking:  # one at a time: each sets Spark's log level, and sets it back
        if key not in _checked:
            _ask(spark, call, tuple(modules))
            _checked.add(key)


def _ask(spark: SparkSession, call: str, modules: tuple[str, ...]) -> None:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    tasks = max(1, min(parallelism(spark), _MOST_ASKED))
    try:
        with without_logs(spark):
            answers = run_tasks(spark, _question(modules), tasks)
    except (Py4JError, PySparkException) as error:
        problem = problem_in(str(error))
        if problem is None and CANCELLED.search(str(error)):
            raise SessionError(f"{call}: {reason_of(error)}; nothing has been done") from None
        if problem is None:
            problem = f"Spark runs no Python worker on {python_of(spark)} ({reason_of(error)}); {_SAME_PYTHON}"
        raise ClusterConfigurationError(f"{call}: {problem}") from None
    for answer in answers:
        where = f"the Python worker {answer['executable']} on {answer['host']}"
        found = difference(where, answer["python"], answer["lakelens"])
        if found is None and answer["missing"]:
            lacking = missing_dependency(ImportError(name=answer["missing"][0]), call)
            if lacking is not None and answer["executable"] == sys.executable:
                raise lacking
            missing = ", ".join(answer["missing"])
            found = f"{where} cannot import {missing}; install there what the driver has: {_INSTALL}"
        if found is not None:
            raise ClusterConfigurationError(f"{call}: {found}")


def difference(where: str, python: str, version: str | None, driver: str | None = None) -> str | None:
    """Says in what a process elsewhere differs from the driver, and how to fix it; None if in nothing."""
    import lakelens

    here, driver = platform.python_version(), driver or lakelens.__version__
    if python.split(".")[:2] != here.split(".")[:2]:
        return f"{where} runs Python {python}, the driver {here}; {_SAME_PYTHON}"
    if version is None:
        return f"{where} has no lakelens; {_same_lakelens(driver)}"
    if version != driver:
        return f"{where} has lakelens {version}, the driver {driver}; {_same_lakelens(driver)}"
    return None


def problem_in(text: str) -> str | None:
    """Says that workers lack lakelens or run another Python, by Spark's account of a failed job; None otherwise."""
    import lakelens

    if "No module named 'lakelens" in text:
        return f"the executors have no lakelens; {_same_lakelens(lakelens.__version__)}"
    if "PYTHON_VERSION_MISMATCH" in text or ("different version" in text and "PYSPARK_PYTHON" in text):
        return f"the executors run another Python than the driver, {platform.python_version()}; {_SAME_PYTHON}"
    return None


def reason_of(error: Exception) -> str:
    """Finds the sentence in Spark's pages of stack traces: Python's own, or else Spark's."""
    text = str(error)
    _, _, python = text.partition("PythonException: Traceback")
    said = [line.strip() for line in python.partition("\n\tat ")[0].splitlines() if line.strip()]
    if said:
        return said[-1][:_MAX_REASON_CHARACTERS]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines:
        if "SparkException:" in line:
            return line.partition("SparkException:")[2].strip()[:_MAX_REASON_CHARACTERS]
    return (lines[0] if lines else type(error).__name__)[:_MAX_REASON_CHARACTERS]


_SAME_PYTHON = (
    f"before the session starts, set PYSPARK_PYTHON (or spark.pyspark.python) to Python "
    f"{'.'.join(platform.python_version_tuple()[:2])} with lakelens: on this machine PYSPARK_PYTHON={sys.executable}"
)
_INSTALL = f"a cluster library, or on this machine PYSPARK_PYTHON={sys.executable} before the session starts"


def _same_lakelens(version: str) -> str:
    return (
        f"send it with spark.sparkContext.addPyFile('lakelens-{version}-py3-none-any.zip'), which `make wheel` writes, "
        f"or install the wheel there: {_INSTALL}"
    )


def _question(modules: tuple[str, ...]) -> Any:
    """Makes the function that a worker runs: it is pickled by value, since a worker may lack this module."""

    def answer(_: Iterator[int]) -> Iterator[dict[str, Any]]:
        import importlib.util
        import platform
        import socket
        import sys

        known = {name for name in sys.modules if name.partition(".")[0] == "lakelens"}
        try:
            import lakelens

            version: str | None = lakelens.__version__
        except ImportError:
            version = None
        # A worker is used again: what the check has imported must not hide what is sent after it.
        for name in [name for name in sys.modules if name.partition(".")[0] == "lakelens"]:
            if name not in known:
                del sys.modules[name]
        yield {
            "host": socket.gethostname(),
            "executable": sys.executable,
            "python": platform.python_version(),
            "lakelens": version,
            "missing": [name for name in modules if importlib.util.find_spec(name) is None],
        }

    return answer
