"""The modules as a graph: no circles of imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("lakelens", "etl", "training", "search", "inference", "jobs")


@cache
def modules() -> dict[str, tuple[Path, ast.Module]]:
    """Every module by its dotted name, with its file and its syntax tree."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts if folder == "lakelens" else ("lakelens", *parts)).removesuffix(".__init__")
            found[name] = path, ast.parse(path.read_text(encoding="utf-8"))
    return found


def imports_of(name: str) -> Iterator[str]:
    """The modules that one imports, for type checkers too."""
    path, tree = modules()[name]
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        above = package[: len(package) - node.level + 1] if node.level else []
        source = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            yield from (one for one in (f"{source}.{alias.name}", source) if one in modules())


def test_no_module_imports_itself_through_others() -> None:
    graph = {name: {one for one in imports_of(name) if one != name} for name in modules()}
    packages = {name for name, (path, _) in modules().items() if path.name == "__init__.py"}
    try:
        # A package that gives its modules' names lazily is no part of a circle.
        TopologicalSorter({name: graph[name] - packages for name in graph}).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None
