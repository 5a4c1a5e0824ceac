"""Tracebacks as a user reads them: the frames of the user's code, without those of the libraries that called it."""

from __future__ import annotations

import os
import re
import sys
import traceback
from types import TracebackType

from .errors import LakelensError

# In JSON a character may take twelve bytes; see `error_reports.MAX_TRACEBACK_CHARACTERS`.
_MOST_CHARACTERS = 16_000
# Packages whose frames say nothing about the user's mistake.
_LIBRARIES = frozenset({"lakelens", "horovod", "keras", "tensorflow", "torch", "cloudpickle", "importlib", "runpy"})
# TensorFlow's copy of a function; the message then begins so, and has the frames of the function itself.
_GENERATED, _IN_USER_CODE = "__autograph_generated_file", "in user code:"
_FRAME = re.compile(r' +File "(?P<path>[^"\n]+)", line \d+, in .*\n(?:        .*\n)?')
_COPY = re.compile(r"outer_factory\.<locals>\.inner_factory\.<locals>\.tf__")


def user_traceback(error: BaseException, frames: TracebackType | None) -> str:
    """Formats an error with the user's frames alone; "" for an error of lakelens that is not in the user's code."""
    # An error that no frame of the user explains keeps every frame: it is a defect.
    shown = traceback.TracebackException(type(error), error, frames, compact=True)
    is_users = _keep_users(shown, error, frames) or is_of_autograph(error)
    if not is_users and isinstance(error, LakelensError):
        return ""
    if not is_users and not isinstance(error, SyntaxError):
        shown = traceback.TracebackException(type(error), error, frames, compact=True)
    return tidied("".join(shown.format()))[-_MOST_CHARACTERS:].rstrip()


def tidied(text: str) -> str:
    """Removes frames of libraries from the message of an error in a function that TensorFlow has converted."""
    if _IN_USER_CODE not in text:
        return text
    names = [f"{name}.training" if name == "lakelens" else name for name in _LIBRARIES]
    folders = [f"{path}{os.sep}" for name in names for path in getattr(sys.modules.get(name), "__path__", ())]
    text = _FRAME.sub(lambda frame: "" if frame["path"].startswith(tuple(folders)) else frame[0], text)
    return _COPY.sub("", text)


def with_cells(text: str) -> str:
    """Names the cells of this process' notebook as IPython does: `Cell In[3]` instead of a generated file name."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None:
        return text

    def named(found: re.Match[str]) -> str:
        cell = shell.compile.format_code_name(found["path"])
        return " ".join(cell) if cell else found[0]

    return re.sub(r'File "(?P<path>[^"\n]+)"', named, text)


def is_of_autograph(error: BaseException) -> bool:
    """Returns whether an error's message has the frames of the user's function."""
    return bool(error.args) and str(error.args[0]).startswith(_IN_USER_CODE)


def _keep_users(shown: traceback.TracebackException, error: BaseException, frames: TracebackType | None) -> bool:
    """Removes the frames of libraries, also of causes; returns whether any frame is left."""
    kept = [
        summary
        for summary, (frame, _) in zip(shown.stack, traceback.walk_tb(frames), strict=False)
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in _LIBRARIES
        and _GENERATED not in summary.filename
    ]
    shown.stack[:] = kept
    is_users = bool(kept)
    for inner, cause in ((shown.__cause__, error.__cause__), (shown.__context__, error.__context__)):
        if inner is not None and cause is not None:
            is_users = _keep_users(inner, cause, cause.__traceback__) or is_users
    return is_users
