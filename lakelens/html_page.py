"""HTML pages that need nothing else: no script, no font, no address; pure.

A page is a Jinja2 template that extends `base.html` of `lakelens/templates` and escapes every text. Its content
security policy forbids scripts and requests.
"""

from __future__ import annotations

import base64
import pkgutil
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .errors import MissingDependencyError

if TYPE_CHECKING:
    from jinja2 import Environment


def render(package: str, template: str, **values: Any) -> str:
    """Renders a template.

    Args:
        package: The package whose folder holds the template.
        template: Its file name.
        values: What the template refers to.

    Raises:
        MissingDependencyError: If Jinja2 is not installed.
    """
    return _environment(package).get_template(template).render(**values)


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
            except FileNotFoundError:
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
    environment.filters |= {
        "base64": lambda data: base64.b64encode(data).decode("ascii"),
        "number": lambda value: f"{value:,}",
        "share": lambda value: f"{value:.0%}",
        "tail": tail_of,
    }
    return environment


# The functions below serve pages that are not templates yet.


def render_page(
    name: str, where: str, facts: Mapping[str, str], sections: Iterable[tuple[str, str, str]], footer: str
) -> str:
    """Renders a page.

    Args:
        name: Its heading.
        where: The line below.
        facts: Large values by what they are, under the heading.
        sections: Anchor, title and HTML of each section; those without HTML are left out.
        footer: Its last line.
    """
    from markupsafe import Markup

    return render(
        "lakelens",
        "base.html",
        name=name,
        where=where,
        facts=[(value, what) for what, value in facts.items()],
        sections=[(key, title, Markup(body)) for key, title, body in sections],  # noqa: S704 - its maker has escaped it
        footer=footer,
    )


def plot_tag(png: bytes | None, description: str, width_px: int | None = None) -> str:
    """Writes a PNG into the page, at the page's width or narrower; nothing for None."""
    return _part("plot", png, description, width_px)


def thumbnail_tag(jpeg: bytes, about: str) -> str:
    """Writes a JPEG into the page; `about` appears under the mouse."""
    return _part("picture", jpeg, about)


def table_tag(head: Iterable[tuple[str, bool]], rows: Iterable[Iterable[str]]) -> str:
    """Writes a table of texts.

    Args:
        head: For each column its heading, and whether its cells are texts, which start at the left.
        rows: The cells.
    """
    return _part("table", list(head), [list(row) for row in rows])


def _part(name: str, *arguments: Any) -> str:
    parts = _environment("lakelens").get_template("parts.html").module
    return str(getattr(parts, name)(*arguments))
