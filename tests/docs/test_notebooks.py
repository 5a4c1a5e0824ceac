"""Notebooks import what the documentation of the API names, and nothing else of lakelens."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import lakelens

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))
PUBLIC_MODULES = {"lakelens", "lakelens.errors", "lakelens.hvd", "lakelens.search"}


def names_in(path: Path) -> Iterator[str]:
    """The modules and names of lakelens that a notebook imports, as `module` or `module.name`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name.partition(".")[0] == "lakelens")
        elif isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "lakelens":
            yield from (f"{node.module}.{one.name}" for one in node.names)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_imports_public_names_alone(path: Path) -> None:
    public = PUBLIC_MODULES | {f"lakelens.{name}" for name in lakelens.__all__}
    private = [
        name
        for name in names_in(path)
        if name not in public and name.rpartition(".")[0] not in PUBLIC_MODULES - {"lakelens"}
    ]
    assert private == []


def test_public_modules_have_a_page() -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "api").glob("*.md"))
    assert {module for module in PUBLIC_MODULES if not re.search(rf"\b{module}\b", pages)} == set()
