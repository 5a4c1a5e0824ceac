"""Converts Python values to JSON and arrays, and back, to store state without pickle. Pure.

Numbers, texts, None, NumPy arrays, and lists, tuples and dicts of them; everything else is not a plain value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Arrays = dict[str, np.ndarray[Any, Any]]


class NotPlainError(Exception):
    """Raised when a value is not a plain one."""


def encode(value: Any, arrays: Arrays, name: str) -> Any:
    """Returns a value as JSON."""
    import numpy as np

    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise NotPlainError
        arrays[name] = value
        return {"array": name}
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        items = [encode(item, arrays, f"{name}/{number}") for number, item in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else items
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {"dict": {key: encode(item, arrays, f"{name}/{key}") for key, item in value.items()}}
    raise NotPlainError


def decode(value: Any, arrays: Mapping[str, Any]) -> Any:
    """Restores the value that `encode` got."""
    if isinstance(value, list):
        return [decode(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "float":
        return float(inner)
    if kind == "array":
        return arrays[inner]
    if kind == "tuple":
        return tuple(decode(item, arrays) for item in inner)
    return {key: decode(item, arrays) for key, item in inner.items()}


def encode_attributes(holder: object, arrays: Arrays, name: str, skipped: frozenset[str]) -> dict[str, Any]:
    """Returns an object's plain attributes as JSON."""
    found = {}
    for key, value in vars(holder).items():
        if key in skipped:
            continue
        own: Arrays = {}
        try:
            found[key] = encode(value, own, f"{name}/{key}")
        except NotPlainError:
            continue
        arrays.update(own)
    return found
