"""The commands that the pages of benchmarks name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

CHECKOUT = Path(__file__).resolve().parents[2]


def test_every_command_of_the_page_exists_and_describes_itself() -> None:
    page = (CHECKOUT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    names = {*re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE), *re.findall(r"python -m benchmarks\.([a-z_]+)", page)}
    assert {"etl", "inference", "faults", "peers", "summary", "picture"} <= names
    variables = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    started = {
        name: subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.{name}", "--help"],
            cwd=CHECKOUT,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in sorted(names)
    }
    described = {name: process.communicate()[0] for name, process in started.items()}
    failed = {name: described[name] for name, process in started.items() if process.returncode}
    assert not failed
    assert all(text.startswith(f"usage: {name}.py") for name, text in described.items())
