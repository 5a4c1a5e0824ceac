"""How results look in a terminal, in a notebook and on a page."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Mapping, Sequence
from typing import Any

_MOST_SHOWN = 10
_LINE_LENGTH = 100


class ReadableResult:
    """Base of result dataclasses (`repr=False`): shows the fields with a value, one per line.

    Fields that have their default, and empty ones, are left out; long lists and mappings are cut. A list that one line
    does not hold has a line for each item.
    """

    def __repr__(self) -> str:
        name = type(self).__name__
        lines = [f"  {field}={_text(value)}," for field, value in self._shown()]
        return "\n".join([f"{name}(", *lines, ")"]) if lines else f"{name}()"

    def _repr_html_(self) -> str:
        cell = "style='text-align:left'"
        rows = "".join(
            f"<tr><th {cell}>{html.escape(field)}</th><td {cell}>{_html(value)}</td></tr>"
            for field, value in self._shown()
        )
        return f"<table><caption>{html.escape(type(self).__name__)}</caption>{rows}</table>"

    def _shown(self) -> list[tuple[str, Any]]:
        shown = []
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # its subclasses are dataclasses
            value = getattr(self, field.name)
            is_default = field.default is not dataclasses.MISSING and value == field.default
            if field.repr and not is_default and not _is_empty(value):
                shown.append((field.name, value))
        return shown


def noun_of(count: int, noun: str) -> str:
    """The noun in the singular or plural that a count needs."""
    if count == 1:
        return noun
    return f"{noun}es" if noun.endswith(("s", "x")) else f"{noun}s"


def counted(count: int, noun: str) -> str:
    """A count with its noun: `1 file`, `2,000 files`."""
    return f"{count:,} {noun_of(count, noun)}"


def duration(seconds: float) -> str:
    """Writes a duration with its two largest units, such as `2 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def _is_empty(value: Any) -> bool:
    if isinstance(value, (Mapping, str, Sequence)):
        return not value
    return isinstance(value, ReadableResult) and not value._shown()


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(_cut([f'{key!r}: {_text(inner)}' for key, inner in _head(value.items())], len(value)))}}}"
    if isinstance(value, (list, tuple)):
        parts = _cut([_text(inner) for inner in _head(value)], len(value))
        text = ", ".join(parts)
        if len(text) <= _LINE_LENGTH:
            return f"[{text}]"
        return "\n".join(["[", *(f"    {part},".replace("\n", "\n  ") for part in parts), "  ]"])
    return repr(value).replace("\n", "\n  ")


def _html(value: Any) -> str:
    if isinstance(value, ReadableResult):
        return value._repr_html_()
    if isinstance(value, Mapping):
        parts = [f"{html.escape(str(key))}: {_html(inner)}" for key, inner in _head(value.items())]
        return "<br>".join(_cut(parts, len(value)))
    if isinstance(value, (list, tuple)):
        return "<br>".join(_cut([_html(inner) for inner in _head(value)], len(value)))
    return html.escape(str(value))


def _head(values: Any) -> list[Any]:
    return list(values)[:_MOST_SHOWN]


def _cut(parts: list[str], count: int) -> list[str]:
    return parts if count <= len(parts) else [*parts, f"... and {count - len(parts)} more"]
