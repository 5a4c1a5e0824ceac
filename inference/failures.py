"""Turns what Spark says of a failed task into the error that the task raised."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from .. import errors
from ..errors import LakelensError, VersionFilesMissingError

# The last line of a Python traceback in Spark's message.
_RAISED = re.compile(r"^(?:\s*)lakelens\.errors\.(?P<kind>\w+): (?P<message>.+)$", re.MULTILINE)
_MISSING_FILE = re.compile(r"FileNotFoundException|FAILED_READ_FILE\.FILE_NOT_EXIST|DELTA_FILE_NOT_FOUND")


@contextmanager
def typed_failures(table: str) -> Iterator[None]:
    """Raises the `LakelensError` that a task of the body raised, instead of Spark's report of it.

    Args:
        table: The table version that the tasks read, for the message about its files.

    Raises:
        LakelensError: Of the class that the task raised.
        VersionFilesMissingError: If a data file of the table is gone.
    """
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
    """Finds the error of ours in Spark's report; None if there is none."""
    raised = _RAISED.search(report)
    if raised is not None:
        kind = getattr(errors, raised["kind"], None)
        if isinstance(kind, type) and issubclass(kind, LakelensError) and kind is not errors.ImageError:
            return kind(raised["message"])
    if _MISSING_FILE.search(report):
        return VersionFilesMissingError(
            f"{table}: a data file of this version is gone, removed by VACUUM or by hand. Score a version whose files "
            "are there, and pin versions that are needed for longer (ImageTable.pin)"
        )
    return None
