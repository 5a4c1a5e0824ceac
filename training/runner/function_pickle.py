"""Pickles the training function and its arguments for the ranks, and explains why one cannot be pickled."""

from __future__ import annotations

import contextlib
import io
import linecache
import os
import stat
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle

from ...errors import InvalidArgumentError, UnpicklableFunctionError

_MAX_DEPTH = 3
# cloudpickle's name for the file of every function.
_REPLACED = "<dynamic-code>"


def pickle_function(main: Callable[..., Any], kwargs: Mapping[str, Any]) -> bytes:
    """Pickles a training function with its arguments, and the lines of its source for tracebacks."""
    if not callable(main):
        raise InvalidArgumentError(f"run(main, ...) takes a function, got {type(main).__name__}: {main!r}")
    lines: dict[str, list[str]] = {}

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        """Keeps the file names of functions, which cloudpickle replaces, and collects the lines of these files."""

        def reducer_override(self, value: Any) -> Any:
            if not isinstance(value, types.CodeType):
                return super().reducer_override(value)
            make, parts = self.dispatch_table[types.CodeType](value)
            lines.setdefault(value.co_filename, _lines_of(value.co_filename))
            return make, tuple(value.co_filename if part == _REPLACED else part for part in parts)

    try:
        buffer = io.BytesIO()
        # The lines come last, when all functions have been seen.
        Pickler(buffer).dump((main, dict(kwargs), lines))
        return buffer.getvalue()
    except Exception as error:
        candidates = {f"argument {name}={_short(value)}": value for name, value in kwargs.items()} | _captured(main)
        culprit = _first_culprit(candidates, _MAX_DEPTH)
        named = f"{culprit.label} ({culprit.kind})" if culprit else f"something that it refers to ({error})"
        raise UnpicklableFunctionError(
            f"the training function {getattr(main, '__qualname__', main)!r} cannot be sent to the ranks: {named} "
            f"cannot be pickled. {_ADVICE[culprit.family if culprit else None]}"
        ) from error


def _lines_of(name: str) -> list[str]:
    """The lines of a file or of a notebook's cell, as this process knows them; [] if it does not."""
    with contextlib.suppress(OSError, ValueError):
        if name == "<stdin>" and stat.S_ISREG(os.fstat(0).st_mode):  # python - < FILE
            return os.pread(0, os.fstat(0).st_size, 0).decode("utf-8", "replace").splitlines(keepends=True)
    return linecache.getlines(name)


@dataclass(frozen=True)
class Culprit:
    """An object that cannot be pickled."""

    label: str  # Its name as the user wrote it
    kind: str  # Its type
    family: str | None  # `stream`, `spark` or `tensorflow`; None for any other


# What to do instead, by the family of the object.
_ADVICE = {
    "stream": "Spark reads a stream on the driver: write it to a Delta table and let the function read one version "
    "(lakelens.DeltaFeed), or call run() from foreachBatch.",
    "spark": "Spark's objects live on the driver: pass a table's path and version and read them inside the function "
    "(lakelens.DeltaFeed), or plain values.",
    "tensorflow": "TensorFlow objects from outside the function belong to the driver's process: create them inside the "
    "function.",
    None: "Usual causes are a TensorFlow or Spark object, an open file or a lock from outside the function: create it "
    "inside the function, or pass a path or plain values.",
}
_FAMILIES = {"pyspark": "spark", "py4j": "spark", "tensorflow": "tensorflow", "keras": "tensorflow"}


def _family(value: Any) -> str | None:
    family = _FAMILIES.get(type(value).__module__.partition(".")[0])
    if family == "spark":
        with contextlib.suppress(Exception):  # asks the JVM, which may be gone
            if getattr(value, "isStreaming", False) is True:
                return "stream"
    return family


def _first_culprit(candidates: Mapping[str, Any], depth: int) -> Culprit | None:
    """Finds the innermost object that cannot be pickled; None if it cannot be named."""
    return next(filter(None, (_culprit(label, value, depth) for label, value in candidates.items())), None)


def _culprit(label: str, value: Any, depth: int) -> Culprit | None:
    if _picklable(value):
        return None
    family = _family(value)
    if depth > 0 and family is None:
        found = _first_culprit({f"{label} -> {name}": inner for name, inner in _parts(value).items()}, depth - 1)
        if found is not None:
            return found
    return Culprit(label, f"{type(value).__module__}.{type(value).__qualname__}", family)


def _parts(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {f"[{key!r}]": inner for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return {f"[{index}]": inner for index, inner in enumerate(value)}
    if isinstance(value, types.FunctionType):
        return _captured(value)
    attributes = {} if isinstance(value, type) else getattr(value, "__dict__", {})
    return {f".{name}": inner for name, inner in attributes.items()}


def _captured(function: Any) -> dict[str, Any]:
    """The captured objects of a function: closure variables, globals, defaults, the object that it is bound to."""
    bound = getattr(function, "__self__", None)
    function = getattr(function, "__func__", function)
    if not isinstance(function, types.FunctionType):
        partial = getattr(function, "func", None)
        return _captured(partial) if partial is not None else {"the object": function}
    found: dict[str, Any] = {} if bound is None else {"self": bound}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            found[f"variable {name!r}"] = cell.cell_contents
        except ValueError:
            continue  # not assigned yet
    for name in _global_names(function.__code__):
        if name in function.__globals__ and not isinstance(function.__globals__[name], types.ModuleType):
            found[f"global variable {name!r}"] = function.__globals__[name]
    for index, value in enumerate(function.__defaults__ or ()):
        found[f"default argument {index}"] = value
    return found


def _global_names(code: types.CodeType) -> list[str]:
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += _global_names(constant)
    return names


def _picklable(value: Any) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:  # noqa: BLE001 - a user's object may raise anything from its __reduce__
        return False
    return True


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
