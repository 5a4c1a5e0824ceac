"""Conditions that a user gives as SQL: every error that one causes is an error of ours that names its columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...errors import InvalidArgumentError
from ...spark.port import settings_of
from .failures import cause_of, failure_of, is_of_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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


def rows_where(rows: DataFrame, where: str) -> DataFrame:
    """Returns the rows that meet a condition; its values are looked at when they are computed."""
    check_condition(where)
    with condition_named(rows, where):
        found = rows.where(where)
        _ = found.schema  # a Connect session looks at the condition now
        return found


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
        raise InvalidArgumentError(f"where={where!r} {_reason(cause)}{_types(rows, where)}") from error


def _reason(cause: str) -> str:
    cast = _CAST.search(cause)
    if cast is not None:
        return f"compares values of two types: {cast['value']} is a {cast['type']}, and not a {cast['wanted']}"
    return f"is not a condition on the columns of the table: {cause.rstrip('.')}"


def _types(rows: DataFrame, where: str) -> str:
    """Names the columns of a condition with their types."""
    words = {word.lower() for word in re.findall(r"\w+", re.sub(r"'[^']*'", "", where))}
    named = [f"{one.name} is {one.dataType.simpleString()}" for one in rows.schema if one.name.lower() in words]
    return f". In the table {', '.join(named)}" if named else ""
