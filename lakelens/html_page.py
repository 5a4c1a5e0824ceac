"""HTML pages that need nothing else: no script, no font, no address; pure.

A page is a Jinja2 template that extends `base.html` of `lakelens/templates` and escapes every text. Its content
security policy forbids scripts and requests.
"""

from __future__ import annotations

import base64
import math
import pkgutil
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from .errors import MissingDependencyError
from .results import counted, noun_of

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
        loader=FunctionLoader(load),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
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
