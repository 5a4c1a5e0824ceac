"""How results look in a terminal, in a notebook and on a page, and HTML pages that need nothing else.

A page is a Jinja2 template that extends `base.html` of `lakelens/templates` and escapes every text. Its content
security policy forbids scripts and requests.
"""

from __future__ import annotations

import base64
import dataclasses
import html
import math
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from .errors import MissingDependencyError

if TYPE_CHECKING:
    from jinja2 import Environment


def render(package: str, template: str, **values: Any) -> str:
    """Renders a template."""
    return _environment(package).get_template(template).render(**values)


def title_of(name: str, table: str, version: object, when: datetime, rows: str = "") -> str:
    """Names a page by what was done, the table version, the rows and the date."""
    place = f"{table.rstrip('/').rpartition('/')[2]}@{version}"
    return ", ".join(filter(None, [f"{name} on {place}", rows, f"{when:%Y-%m-%d}"]))


def tail_of(path: str) -> str:
    """The last two parts of a path: enough to distinguish files."""
    return "/".join(path.rsplit("/", 2)[-2:])


def _environment(package: str) -> Environment:
    try:
        from jinja2 import Environment, FunctionLoader, StrictUndefined
    except ImportError as error:
        raise MissingDependencyError("HTML pages need Jinja2: pip install 'lakelens[search]'") from error

    def load(name: str) -> str | None:
        # `get_data` also reads from the zip file that spark-submit ships.
        for place, file in ((package, name), (__package__, f"templates/{name}")):
            try:
                data = pkgutil.get_data(place, file)
            except OSError:  # of a zip file not always a FileNotFoundError
                continue
            return None if data is None else data.decode()
        return None

    environment = Environment(
        loader=FunctionLoader(load), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    filters: dict[str, Callable[[Any], str]] = {
        "base64": lambda data: base64.b64encode(data).decode("ascii"),
        "number": lambda value: f"{value:,}",
        "share": lambda value: f"{value:.0%}",
        "fixed": lambda value: "-" if value is None else f"{value:.3f}",
        "short": _short,
        "tail": tail_of,
    }
    environment.filters.update(filters)
    environment.globals.update(counted=counted, noun_of=noun_of, title_of=title_of)
    return environment


def _short(value: object) -> str:
    """Writes a number with five digits, NaN as a dash, and other values as they are."""
    if not isinstance(value, float):
        return str(value)
    return "-" if math.isnan(value) else f"{value:.5g}"


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


def some_of(texts: Sequence[str], most: int) -> str:
    """Lists the first of some texts, and how many more there are."""
    more = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {more} more" if more > 0 else "")


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
