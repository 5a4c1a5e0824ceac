"""Checks of configuration values; every message gives the YAML path, the value and the rule."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import ConfigurationError

_SHOWN_CHARACTERS = 80


def shown(value: Any) -> str:
    """Writes a value for a message, shortened where it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def suggestion(key: Any, known: Iterable[str]) -> str:
    """Names the nearest key that exists; empty when none is near."""
    near = difflib.get_close_matches(str(key), list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def require_mapping(path: str, value: Any) -> Mapping[str, Any]:
    """Returns a mapping whose keys are text.

    Raises:
        ConfigurationError: If it is not one.
    """
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{path}={shown(value)}: it must be a mapping of keys to values")
    for key in value:
        if not isinstance(key, str):
            raise ConfigurationError(f"{path}: the key {shown(key)} is not text; quote it, as in '{key}'")
    return value


def reject_unknown(path: str, mapping: Mapping[str, Any], known: Iterable[str], owner: str) -> None:
    """Raises for the first key that the owner does not have.

    Raises:
        ConfigurationError: Names the nearest key and all that there are.
    """
    known = list(known)
    for key in mapping:
        if key not in known:
            raise ConfigurationError(
                f"{path}.{key}: {owner} has no such key{suggestion(key, known)}. Its keys: {', '.join(known)}"
            )


def one_of(path: str, value: Any, known: Iterable[str]) -> str:
    """Returns a text that is one of those known.

    Raises:
        ConfigurationError: If it is another.
    """
    known = list(known)
    if isinstance(value, str) and value in known:
        return value
    raise ConfigurationError(f"{path}={shown(value)}: it must be one of {', '.join(known)}{suggestion(value, known)}")


def whole_number(path: str, value: Any, at_least: int | None = None) -> int:
    """Returns a whole number.

    Raises:
        ConfigurationError: If it is none, or below the least.
    """
    if isinstance(value, bool) or not isinstance(value, int) or (at_least is not None and value < at_least):
        bound = "" if at_least is None else f" of at least {at_least}"
        raise ConfigurationError(f"{path}={shown(value)}: it must be a whole number{bound}{_text_hint(value)}")
    return value


def number(path: str, value: Any) -> int | float:
    """Returns a finite number.

    Raises:
        ConfigurationError: If it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise ConfigurationError(f"{path}={shown(value)}: it must be a finite number{_text_hint(value)}")
    return value


def _text_hint(value: Any) -> str:
    """Explains text that looks like a number: YAML 1.1 reads `1e-4` as text."""
    if not isinstance(value, str):
        return ""
    try:
        float(value)
    except ValueError:
        return ", not text"
    return ", not text; YAML reads 1e-4 as text and 1.0e-4 as a number"
