"""The commands that the pages of benchmarks name."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from child_processes import run_to_end

pytestmark = pytest.mark.system

CHECKOUT = Path(__file__).resolve().parents[2]


IN_TURN = """
import contextlib, io, json, runpy, sys

described = {}
for name in sys.argv[1:]:
    sys.argv = [name, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)
    described[name] = out.getvalue()
print(json.dumps(described))
"""


def test_every_command_of_the_page_exists_and_describes_itself() -> None:
    page = (CHECKOUT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    names = {*re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE), *re.findall(r"python -m benchmarks\.([a-z_]+)", page)}
    assert {"etl", "inference", "faults", "peers", "summary", "picture"} <= names
    described = json.loads(run_to_end([sys.executable, "-c", IN_TURN, *sorted(names)], cwd=CHECKOUT).stdout)
    assert [name for name in names if not described[name].startswith(f"usage: {name}.py")] == []
