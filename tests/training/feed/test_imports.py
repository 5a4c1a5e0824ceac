"""The feed's modules import downwards only; the contract in pyproject.toml has the layers."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import lakelens.training.feed

pytestmark = pytest.mark.unit

FEED = Path(lakelens.training.feed.__file__).parent


def imported(file: Path, known: set[str]) -> set[str]:
    """The feed's modules that one of them imports, at any place in its file and for types only too."""
    module = file.relative_to(FEED).with_suffix("").parts
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and 0 < node.level <= len(module):
            base = [*module[: len(module) - node.level], *(node.module or "").split(".")]
            names = [".".join(filter(None, base)), *(".".join(filter(None, [*base, a.name])) for a in node.names)]
            found |= known.intersection(names)
    return found


def test_no_modules_import_each_other_in_a_circle_not_even_for_types():
    files = {file for file in FEED.rglob("*.py") if file.name != "__init__.py"}
    names = {".".join(file.relative_to(FEED).with_suffix("").parts): file for file in files}
    graph = {name: imported(file, set(names)) for name, file in names.items()}
    assert {"image_batches", "rank_batches", "plan.feed_plan"} <= set(names)
    assert "plan.feed_plan" in graph["reading"]
    list(TopologicalSorter(graph).static_order())  # raises CycleError with the circle
