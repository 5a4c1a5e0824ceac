"""The files of a release name commands, targets and paths that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]


def test_the_workflow_runs_targets_and_files_that_exist() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8"))["jobs"]
    lines = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert any("test_readme.py" in line for line in lines)
    for line in lines:
        words = line.split()
        if words[0] == "make":
            assert set(words[1:]) <= set(targets), line
        for word in words:
            assert not word.startswith(("tests/", ".ci/")) or (ROOT / word).is_file(), line


def test_the_image_installs_an_extra_and_a_stack_that_exist() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    (extra,) = re.findall(r"^ARG EXTRA=(.+)$", text, re.MULTILINE)
    assert f'"{extra}":' in (ROOT / "setup.py").read_text(encoding="utf-8")
    for file in re.findall(r"constraints/\S+\.txt", text):
        assert (ROOT / file).is_file(), file
    assert re.findall(r"^FROM python:(\d+\.\d+)", text, re.MULTILINE) == ["3.12", "3.12"]
