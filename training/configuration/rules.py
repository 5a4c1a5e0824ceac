"""Gives pydantic's message about a value, with the nearest key or choice. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ...options import near_miss, suggestion

_LONGEST_VALUE = 80


def rule_of(found: Mapping[str, Any], known: Iterable[str] = ()) -> str:
    """Returns the message of one of pydantic's findings."""
    message = str(found["msg"]).removeprefix("Value error, ")
    if found["type"] == "extra_forbidden":
        return f"{message}; {suggestion(found['loc'][-1], known)}"
    if found["type"] == "literal_error":
        choices = re.findall(r"'([^']*)'", found["ctx"]["expected"])
        return f"{message}{near_miss(found['input'], choices)}"
    return message


def shown(value: Any) -> str:
    """Writes a value for a message, shortened where it is long."""
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
