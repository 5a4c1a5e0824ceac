"""A hook of MkDocs: writes the list of all packages and modules into the page about the architecture.

The line of each is the first sentence of its docstring, so the list is never out of date.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("lakelens", "etl", "training", "search", "inference", "jobs")
MARK = "<!-- every module -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replaces the mark by a list for each package."""
    return markdown.replace(MARK, listing()) if MARK in markdown else markdown


def listing() -> str:
    """Every package and module with one line, in Markdown."""
    parts = []
    for folder in FOLDERS:
        packages = sorted({path.parent for path in (ROOT / folder).rglob("__init__.py")})
        for package in packages:
            modules = [path for path in sorted(package.glob("*.py")) if path.name != "__init__.py"]
            lines = [f"- `{path.name}`: {first_sentence(path)}" for path in modules]
            if lines:
                title = f"### `{package.relative_to(ROOT).as_posix()}`"
                parts.append("\n".join([title, "", f"{first_sentence(package / '__init__.py')}.", "", *lines, ""]))
    return "\n".join(parts)


def first_sentence(path: Path) -> str:
    """The first sentence of a module's or package's docstring, without its full stop.

    Raises:
        ValueError: If the module has none.
    """
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not text:
        raise ValueError(f"{path.relative_to(ROOT)} has no docstring; its first sentence describes it on the site")
    paragraph = " ".join(text.split("\n\n", 1)[0].split())
    return re.split(r"(?<=[.])\s", paragraph, maxsplit=1)[0].removesuffix(".")
