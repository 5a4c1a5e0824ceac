"""Tracebacks as a user reads them: the frames of their own code, without those of the libraries that called it."""

from __future__ import annotations

import traceback
from types import TracebackType

from .errors import LakelensError

# In JSON a character may take twelve bytes; see `error_reports.MAX_TRACEBACK_CHARACTERS`.
_MOST_CHARACTERS = 16_000
# Packages whose frames say nothing about the user's mistake.
_LIBRARIES = frozenset({"lakelens", "horovod", "keras", "tensorflow", "torch", "cloudpickle", "importlib", "runpy"})
# TensorFlow's copy of a function; its message has the user's lines.
_GENERATED = "__autograph_generated_file"


def user_traceback(error: BaseException, frames: TracebackType | None) -> str:
    """Formats an error with the user's frames alone; "" for an error of lakelens that is not in the user's code.

    An error that no frame of the user explains keeps every frame: it is a defect.
    """
    shown = traceback.TracebackException(type(error), error, frames, compact=True)
    is_users = _keep_users(shown, error, frames)
    if not is_users and isinstance(error, LakelensError):
        return ""
    if not is_users and not isinstance(error, SyntaxError):
        shown = traceback.TracebackException(type(error), error, frames, compact=True)
    return "".join(shown.format())[-_MOST_CHARACTERS:].rstrip()


def _keep_users(shown: traceback.TracebackException, error: BaseException, frames: TracebackType | None) -> bool:
    """Removes the frames of libraries, also of causes; returns whether any frame is left."""
    kept = [
        summary
        for summary, (frame, _) in zip(shown.stack, traceback.walk_tb(frames), strict=False)
        if _root(frame.f_globals.get("__name__")) not in _LIBRARIES and _GENERATED not in summary.filename
    ]
    shown.stack[:] = kept
    is_users = bool(kept)
    for inner, cause in ((shown.__cause__, error.__cause__), (shown.__context__, error.__context__)):
        if inner is not None and cause is not None:
            is_users = _keep_users(inner, cause, cause.__traceback__) or is_users
    return is_users


def _root(module: object) -> str:
    return str(module).partition(".")[0]
