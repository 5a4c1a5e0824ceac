"""Words the rule that a value breaks, from pydantic's findings. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...options import near_miss, suggestion

MISSING = "is missing"
_LONGEST_VALUE = 80
_TYPES = {
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "string_type": "must be a text",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be a mapping of keys",
    "model_type": "must be a mapping of keys",
    "model_attributes_type": "must be a mapping of keys",
    "missing": MISSING,
    "finite_number": "must be finite",
}
_BOUNDS = {
    "greater_than": ("gt", "must be more than"),
    "greater_than_equal": ("ge", "must be at least"),
    "less_than": ("lt", "must be less than"),
    "less_than_equal": ("le", "must be at most"),
    "too_short": ("min_length", "must have a length of at least"),
    "string_too_short": ("min_length", "must have a length of at least"),
}


def rule_of(found: Mapping[str, Any], known: Iterable[str] = ()) -> str:
    """Words the rule that one of pydantic's findings is about.

    Args:
        found: An element of `ValidationError.errors()`.
        known: Keys that are allowed where an unknown one was found.
    """
    kind, context = found["type"], found.get("ctx", {})
    if kind in _TYPES:
        return _TYPES[kind]
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return f"{words} {context[key]}"
    if kind == "extra_forbidden":
        return f"is not a key here; {suggestion(found['loc'][-1], known)}"
    if kind == "literal_error":
        options = context["expected"].replace(" or ", ", ")
        return f"must be one of {options}{near_miss(found['input'], options.replace(chr(39), '').split(', '))}"
    if kind == "union_tag_invalid":
        return f"type must be one of {context['expected_tags']}"
    return str(found["msg"]).removeprefix("Value error, ")


def shown(value: Any) -> str:
    """Writes a value for a message, shortened where it is long."""
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
