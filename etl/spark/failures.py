"""Failures of Spark whose cause a user can fix, conflicts of writers, and faulty SQL conditions, as errors of ours."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeAlias, TypeVar
from urllib.parse import quote

from ...error_reports import error_in
from ...errors import (
    ConstraintError,
    InvalidArgumentError,
    LakelensError,
    NoSpaceError,
    SparkFailedError,
    TableConflictError,
    VersionFilesMissingError,
)
from ...retries import Retries
from ...spark.port import forgetting, kept_settings, settings_of
from ...stores.clients import lacks_bucket, no_bucket
from ...table import Table
from .writing_session import SET_FOR_WRITING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded|There is not enough space on the disk")
_CONSTRAINT = re.compile(
    r"\[DELTA_(VIOLATE_CONSTRAINT_WITH_VALUES|NOT_NULL_CONSTRAINT_VIOLATED)\] ([^\n]*(\n - [^\n]*)*)"
)
_MISSING_FILE = re.compile(
    r"FileNotFoundException|FAILED_READ_FILE\.FILE_NOT_EXIST|DELTA_FILE_NOT_FOUND|PATH_NOT_FOUND"
)


# Of what a task has raised: the exception of Java, and the last line of a traceback of Python.
_OF_TASK = re.compile(r"most recent failure: .*?\(TID \d+\)(?: \([^)\n]*\))?: (?P<cause>[^\n]+)")
_OF_PYTHON = re.compile(r"^\s*(?P<cause>(?:\w+\.)*\w+(?:Error|Exception)\b[^\n]*)$", re.MULTILINE)
_AROUND = re.compile(r"^org\.apache\.spark\.\w+: |\s*SQLSTATE: \w{5}\b.*$")
_LONGEST_CAUSE = 500

_Parameters = ParamSpec("_Parameters")
_Value = TypeVar("_Value")
_Place = TypeVar("_Place", str, Table)
_OnTable: TypeAlias = "Callable[Concatenate[SparkSession, _Place, _Parameters], _Value]"


def naming_failures(function: _OnTable[_Place, _Parameters, _Value]) -> _OnTable[_Place, _Parameters, _Value]:
    """Makes a function of a session and a table raise as `failures_named` does, and restore settings and cache."""

    @functools.wraps(function)
    def named(spark: SparkSession, table: _Place, /, *args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Value:
        with failures_named(str(table)), kept_settings(spark, SET_FOR_WRITING), forgetting():
            return function(spark, table, *args, **kwargs)

    return named


@contextmanager
def failures_named(location: str) -> Iterator[None]:
    """Raises an error of ours where Spark, Java or the connection to it fails, and every other error as it is."""
    try:
        yield
    except LakelensError:
        raise
    except Exception as error:
        named = failure_of(str(error), location, within=location)
        if named is None and not is_of_spark(error):
            raise
        failed = SparkFailedError(
            f"{location}: Spark failed: {cause_of(error)}. The table is as it was before, or as the commits of this "
            "call have made it (`lakelens table history`). Run the call again when the cause is gone"
        )
        raise named or error_in(str(error)) or failed from error


def is_of_spark(error: BaseException) -> bool:
    """Whether Spark, Java or the connection to it has raised an error."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return isinstance(error, (PySparkException, Py4JError))


def cause_of(error: BaseException) -> str:
    """Writes the innermost cause of an error of Spark in one line."""
    java, report = getattr(error, "java_exception", None), str(error)
    while java is not None:
        report, java = str(java.toString()), java.getCause()
    python = _OF_PYTHON.findall(report) if "Traceback (most recent call last)" in report else []
    task = _OF_TASK.search(report)
    found = python[-1] if python else task["cause"] if task is not None else report
    lines = [line.strip() for line in found.splitlines() if line.strip()]
    return _AROUND.sub("", lines[0] if lines else type(error).__name__)[:_LONGEST_CAUSE]


def failure_of(report: str, location: str, within: str | None = None) -> LakelensError | None:
    """Finds the cause in Spark's message; None for an unknown message."""
    if _NO_SPACE.search(report):
        return NoSpaceError(
            f"{location}: no space is left on a disk: the table's own, or that of Spark's temporary files "
            "(spark.local.dir, /tmp by default). Free space and try again: what was committed before stays, and files "
            "of what was not are removed by VACUUM"
        )
    if lacks_bucket(report):
        return no_bucket(location)
    is_ours = within is None or f"{within}/" in report or f"{quote(within)}/" in report
    if is_ours and _MISSING_FILE.search(report):
        return VersionFilesMissingError(
            f"{location}: a data file of this version is gone, removed by VACUUM or by hand. Take a version whose "
            "files are there (`lakelens table history`), and pin versions that are needed for longer (ImageTable.pin)"
        )
    if "DELTA_CANNOT_MODIFY_APPEND_ONLY" in report:
        return ConstraintError(
            f"{location} is append-only (delta.appendOnly = true): its rows cannot be changed or removed. Nothing was "
            "committed. Unset the property if that is meant: ALTER TABLE ... UNSET TBLPROPERTIES ('delta.appendOnly')"
        )
    broken = _CONSTRAINT.search(report)
    if broken:
        return ConstraintError(
            f"{location}: {' '.join(broken[2].split())[:500]}. Nothing was committed. Leave such files out of the "
            "source, or drop the constraint: ALTER TABLE ... DROP CONSTRAINT name"
        )
    return None


# Of writers that begin at the same version one commits, so that each of ten needs at most ten attempts.
RETRIES = Retries(attempts=12, first_wait_s=0.5, longest_wait_s=15.0)

_CONFLICTS = (
    "ConcurrentTransactionException",
    "ConcurrentAppendException",
    "ConcurrentDeleteReadException",
    "ConcurrentDeleteDeleteException",
    "ConcurrentWriteException",
    "MetadataChangedException",
    "ProtocolChangedException",
    "ConcurrentModificationException",
    # Two that create the same table at once.
    "DELTA_TABLE_ALREADY_EXISTS",
    "TABLE_OR_VIEW_ALREADY_EXISTS",
    "DELTA_PATH_EXISTS",
    "TableAlreadyExistsException",
)


@contextmanager
def conflicts_named(read: str) -> Iterator[None]:
    """Raises conflicts that Delta reports as `TableConflictError`, and every other error as it is."""
    try:
        yield
    except Exception as error:
        text = f"{type(error).__name__} {error}"
        cause = getattr(error, "java_exception", None)
        if cause is not None:
            text += str(cause.getClass().getName())
        if not any(name in text for name in _CONFLICTS):
            raise
        raise TableConflictError(f"another writer committed first; this one read {read}: {cause_of(error)}") from error


# Without it, Spark 3.5 takes a value of another type for null, and the condition is met by no row.
_STRICT = {"spark.sql.ansi.enabled": "true"}
_CAST = re.compile(r"The value (?P<value>.+?) of the type \"(?P<type>\w+)\" cannot be cast to \"(?P<wanted>[^\"]+)\"")
# What a storage or the cluster may cause, whatever the condition is.
_ELSEWHERE = re.compile(
    r"FAILED_READ_FILE|java\.(io|nio)\.|java\.net\.\w*(Socket|Connect|Host)|\.(parquet|hadoop)\."
    r"|ExecutorLost|OutOfMemory|cancelled|shut ?down|UNAVAILABLE"
)


def check_condition(where: str) -> None:
    """Checks what can be known of a condition without Spark."""
    if not isinstance(where, str) or not where.strip():
        raise InvalidArgumentError(f"where={where!r}: give a SQL condition, such as \"label_name = 'cat'\"")


@contextmanager
def condition_named(rows: DataFrame, where: str) -> Iterator[None]:
    """Raises an error of ours where a condition on rows cannot be analysed, or not be computed for one of them."""
    try:
        with settings_of(rows.sparkSession, _STRICT):
            yield
    except Exception as error:
        if not is_of_spark(error) or failure_of(str(error), "") is not None:
            raise
        cause = cause_of(error)
        if _ELSEWHERE.search(cause.replace(where, "")):
            raise
        cast = _CAST.search(cause)
        reason = f"is not a condition on the columns of the table: {cause.rstrip('.')}"
        if cast is not None:
            reason = f"compares values of two types: {cast['value']} is a {cast['type']}, and not a {cast['wanted']}"
        raise InvalidArgumentError(f"where={where!r} {reason}{_types(rows, where)}") from error


def _types(rows: DataFrame, where: str) -> str:
    """Names the columns of a condition with their types."""
    words = {word.lower() for word in re.findall(r"\w+", re.sub(r"'[^']*'", "", where))}
    named = [f"{one.name} is {one.dataType.simpleString()}" for one in rows.schema if one.name.lower() in words]
    return f". In the table {', '.join(named)}" if named else ""
