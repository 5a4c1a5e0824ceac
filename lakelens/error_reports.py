"""Errors on their way from one process to another, as JSON values or in Spark's text; nothing is unpickled."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from . import errors
from .errors import LakelensError

# In JSON a character may take twelve bytes, and a frame between a rank and its driver holds a mebibyte.
MAX_TRACEBACK_CHARACTERS = 64_000
_MAX_MESSAGE_CHARACTERS = 4_000
# The last line of a Python traceback in Spark's message.
_RAISED = re.compile(r"^(?:\s*)lakelens\.errors\.(?P<kind>\w+): (?P<message>.+)$", re.MULTILINE)


def report_of(error: BaseException, frames: TracebackType | None = None) -> dict[str, Any]:
    """Describes an error as JSON values."""
    kind = type(error)
    return {
        "type": kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}",
        "message": message_of(error)[:_MAX_MESSAGE_CHARACTERS],
        "traceback": "".join(traceback.format_exception(kind, error, frames))[-MAX_TRACEBACK_CHARACTERS:],
        "attributes": _plain(vars(error)) if isinstance(error, LakelensError) else {},
    }


def error_of(report: Mapping[str, Any]) -> LakelensError:
    """Makes an error of lakelens again; any other becomes a plain `LakelensError` that names its type."""
    kind = class_of(report["type"])
    if kind is None:
        return LakelensError(f"{report['type']}: {report['message']}")
    error = kind.__new__(kind, report["message"])
    error.__dict__.update(report["attributes"])
    return error


def error_in(text: str) -> LakelensError | None:
    """Finds the error of lakelens that a Python worker raised in Spark's report of a failed job."""
    raised = _RAISED.search(text)
    kind = None if raised is None else class_of(raised["kind"])
    return None if raised is None or kind is None or kind is errors.ImageError else kind(raised["message"])


def message_of(error: BaseException) -> str:
    """Returns an exception's message, which its class may fail to write."""
    try:
        return str(error)
    except Exception as problem:  # noqa: BLE001 - a user's class may raise anything
        return f"(its message cannot be written: {type(problem).__name__})"


def class_of(name: object) -> type[LakelensError] | None:
    """Returns the class of an error of lakelens by its name, with or without its module."""
    kind = getattr(errors, str(name).removeprefix(f"{errors.__name__}."), None)
    return kind if isinstance(kind, type) and issubclass(kind, LakelensError) else None


def _plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Keeps the attributes that JSON has."""
    kept = {}
    for name, value in attributes.items():
        try:
            kept[name] = json.loads(json.dumps(value))
        except (TypeError, ValueError):
            continue
    return kept
