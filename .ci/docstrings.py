"""Checks that sections of docstrings are only where a user reads them; elsewhere a sentence and comments say it.

Users read the modules of the names of `lakelens`, and those below, with their base classes and other public names.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("etl", "inference", "jobs", "lakelens", "search", "training", "benchmarks")
READ = (
    "lakelens/errors.py",
    "lakelens/results.py",
    "search/create.py",
    "search/searchers/base.py",
    "search/running/run.py",
    "training/configuration/sections.py",
    "training/distributed/",
    "training/feed/adapters/",
    "training/tasks/task.py",
    "training/trials/",
)
_SECTION = re.compile(r"^ *(Args|Returns|Raises|Yields|Attributes):$", re.MULTILINE)


def public_modules() -> set[str]:
    """Reads from `lakelens/__init__.py` which modules its names come from."""
    tree = ast.parse((ROOT / "lakelens/__init__.py").read_text(encoding="utf-8"))
    named = next(
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_NAMES"
    )
    paths = {name.lstrip(".").replace(".", "/") + ".py" for name in ast.literal_eval(named)}
    return {path if (ROOT / path).exists() else f"lakelens/{path}" for path in paths}


def findings() -> Iterator[str]:
    """Names each docstring with a section that no user reads."""
    public = public_modules()
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            path = file.relative_to(ROOT).as_posix()
            if path in public or path.startswith(READ):
                continue
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    continue
                found = _SECTION.search(ast.get_docstring(node) or "")
                if found and (found[1] != "Attributes" or any(isinstance(one, ast.AnnAssign) for one in node.body)):
                    yield f"{path}:{node.lineno}: {node.name}: say it in a sentence, or behind the field: {found[1]}"


if __name__ == "__main__":
    told = list(findings())
    sys.stdout.writelines(f"{one}\n" for one in told)
    sys.exit(bool(told))
