"""Words a finding of pydantic about a value, with the nearest key or choice. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ...options import near_miss, suggestion

_LONGEST_VALUE = 80
# By the start of pydantic's type of the finding; `{}` takes values of its context.
_WORDS = {
    "missing": "a required key is missing",
    "int_": "give a whole number",
    "float_": "give a number",
    "finite_number": "give a finite number",
    "bool_": "give true or false",
    "string_type": "give a text",
    "string_too_short": "give a text",
    "list_type": "give a list",
    "model_": "give keys and their values",
    "dict_": "give keys and their values",
    "dataclass_": "give keys and their values",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
    "literal_error": "must be one of {expected}",
}


def rule_of(found: Mapping[str, Any], known: Iterable[str] = ()) -> str:
    """Returns the message of one of pydantic's findings."""
    kind, context = str(found["type"]), dict(found.get("ctx", {}))
    if kind == "extra_forbidden":
        return f"there is no such key; {suggestion(found['loc'][-1], known)}"
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])
        context["expected"] = context["expected"].replace(" or ", ", ")
        return f"{_WORDS[kind].format_map(context)}{near_miss(found['input'], choices)}"
    words = next((text for start, text in _WORDS.items() if kind.startswith(start)), None)
    return str(found["msg"]).removeprefix("Value error, ") if words is None else words.format_map(context)


def shown(value: Any) -> str:
    """Writes a value for a message, shortened where it is long."""
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
