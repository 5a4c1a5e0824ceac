"""Keywords of calls, checked by name: an unknown one is an error that names the nearest one that exists."""

from __future__ import annotations

import difflib
import functools
import inspect
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any, ParamSpec, TypeVar

from .errors import InvalidArgumentError, UnknownOptionError

_Parameters = ParamSpec("_Parameters")
_Value = TypeVar("_Value")


def closest(name: object, known: Iterable[str]) -> str | None:
    """Finds the known name that is nearest to `name`; None where none is near."""
    near = difflib.get_close_matches(str(name), list(known), n=1)
    return near[0] if near else None


def suggestion(name: object, known: Iterable[str]) -> str:
    """Asks for the known name that is nearest to `name`, or lists them all where none is near."""
    names = sorted(known)
    near = closest(name, names)
    return f"did you mean {near!r}?" if near else f"known are {', '.join(names)}"


def near_miss(name: object, known: Iterable[str]) -> str:
    """Asks in parentheses for the known name that is nearest to `name`; empty where none is near."""
    near = closest(name, known)
    return f" (did you mean {near!r}?)" if near else ""


def check_names(call: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Checks keywords by name."""
    names = list(known)
    for name in given:
        if name not in names:
            raise UnknownOptionError(f"{call} has no option {name!r}; {suggestion(name, names)}")


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Names nested values by their paths, such as `data.table`."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return found


def whole_number(name: str, value: object, least: int | None = None) -> int:
    """Returns a whole number, NumPy's too, as Python's own."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        limit = "" if least is None else f" of at least {least}"
        raise InvalidArgumentError(f"{name}={value!r}: give a whole number{limit}")
    return number


def fraction(name: str, value: object, least: float = 0.0) -> float:
    """Returns a number from `least` to 1, NumPy's too, as Python's own."""
    if isinstance(value, bool) or not isinstance(value, Real) or not least <= float(value) <= 1:
        raise InvalidArgumentError(f"{name}={value!r}: give a number from {least:g} to 1")
    return float(value)


def named_options(function: Callable[_Parameters, _Value]) -> Callable[_Parameters, _Value]:
    """Makes a function or a method name the nearest keyword where Python would raise a bare TypeError.

    Messages call an `__init__` by its class. The keys of a TypedDict count as keywords: `**options: Unpack[Options]`.
    """
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(function).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind in kinds and parameter.name != "self"]
    if unpacked := re.fullmatch(r"Unpack\[(\w+)]", str(function.__annotations__.get("options"))):
        known += function.__globals__[unpacked[1]].__annotations__
    call, constructs = function.__name__, function.__name__ == "__init__"

    @functools.wraps(function)
    def checked(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Value:
        # A class may inherit it.
        check_names(type(args[0]).__name__ if args and constructs else call, kwargs, known)
        return function(*args, **kwargs)

    return checked
