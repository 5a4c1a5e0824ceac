"""Why rows are not scored: the row itself, the machine, or an error of a Spark task."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from ...error_reports import error_in
from ...errors import LakelensError, ScoringFailedError
from ...etl.spark.failures import failure_of

# Errors of rows that the machine or the model may have caused: the next scoring tries such rows again. Read by Python
# and by Java.
TRANSIENT = r"^(model_raised|out_of_memory):|MemoryError|\[Errno \d+\]"
# TensorFlow's names of faults that an input of a fixed size cannot cause.
_OF_THE_MACHINE = frozenset(
    {
        "AbortedError",
        "CancelledError",
        "DataLossError",
        "DeadlineExceededError",
        "ResourceExhaustedError",
        "UnavailableError",
    }
)

_TASK_FAILED = re.compile(r"Job aborted due to stage failure: (?P<report>.+)")
_PYTHON_ERROR = re.compile(r"^(?P<error>(?:\w+\.)*\w+(?:Error|Exception|Exit|Interrupt)\b.*)$", re.MULTILINE)
# TensorFlow writes these before the cause.
_AROUND = ("Graph execution error", "Detected at node", "File ", "Traceback ")
_LONGEST = 500


def is_of_the_machine(error: Exception) -> bool:
    """Returns whether a model that raises this would raise it on any image of the same size."""
    return isinstance(error, (MemoryError, OSError)) or type(error).__name__ in _OF_THE_MACHINE


def is_transient(error: str) -> bool:
    """Returns whether a row with this error should be tried again."""
    return re.search(TRANSIENT, error) is not None


def first_line(error: Exception) -> str:
    """Writes an error in one line, without the text that TensorFlow adds around it."""
    text = str(error)
    raised = _PYTHON_ERROR.search(text)  # in a model's Python function
    lines = [raised[0]] if raised else [line.strip() for line in text.splitlines()]
    useful = [line for line in lines if line and not line.startswith(_AROUND)]
    return f"{type(error).__name__}: {(useful or ['without a message'])[0][:_LONGEST]}"


@contextmanager
def typed_failures(table: str) -> Iterator[None]:
    """Raises the `LakelensError` that a task of the body raised, instead of Spark's report of it."""
    try:
        yield
    except LakelensError:
        raise
    except Exception as error:
        typed = typed_failure(str(error), table)
        if typed is None:
            raise
        raise typed from error


def typed_failure(report: str, table: str) -> LakelensError | None:
    """Finds lakelens' error in Spark's report; None if no task has failed."""
    raised = error_in(report)
    if raised is not None:
        return raised
    named = failure_of(report, table)
    if named is not None:
        return named
    failed = _TASK_FAILED.search(report)
    if failed is None and "Traceback (most recent call last)" not in report:
        return None
    python = _PYTHON_ERROR.findall(report)
    cause = python[-1] if python else failed["report"] if failed is not None else ""
    return ScoringFailedError(
        f"{table}: a task failed and no row is to blame: {cause.strip()[:_LONGEST]}. Fix the cause and score again: "
        "committed predictions stay"
    )
