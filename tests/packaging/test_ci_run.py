"""What `.ci/run` counts: which long tests a commit runs, and tests that pass when they are tried again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

# In place of make: the tests fail once and pass when they are tried again.
FAILING_ONCE = """#!/bin/sh
case "$*" in
    *--last-failed*) echo "1 passed in 1.00s" ;;
    *test-all*)
        echo "FAILED tests/test_one.py::test - Error"
        echo "make: *** [Makefile:1: test-all] Error 1"
        exit 2 ;;
esac
"""


def test_tests_that_pass_when_they_are_tried_again_count_as_passed_and_are_named(
    checkout: Path, tmp_path: Path
) -> None:
    (tmp_path / "copy" / ".ci").mkdir(parents=True)
    shutil.copy(checkout / ".ci" / "run", tmp_path / "copy" / ".ci" / "run")
    make = tmp_path / "programs" / "make"
    make.parent.mkdir()
    make.write_text(FAILING_ONCE, encoding="utf-8")
    make.chmod(0o755)
    variables = os.environ | {"PATH": f"{make.parent}:{os.environ['PATH']}"}
    command = ["bash", ".ci/run"]
    run = subprocess.run(command, cwd=tmp_path / "copy", env=variables, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "modules with tests that failed and were tried again alone:\ntest-all: tests/test_one.py" in run.stdout


def test_the_shares_of_the_long_tests_are_disjoint_and_together_all_of_them(checkout: Path) -> None:
    def collected(*arguments: str) -> list[str]:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-p", "no:cacheprovider"]
        command += ["-m", "long", *arguments, "tests/packaging"]
        told = subprocess.run(command, cwd=checkout, stdout=subprocess.PIPE, text=True, check=True)
        return [line for line in told.stdout.splitlines() if "::" in line]

    shares = [collected("--long-share", f"{share}/2") for share in range(2)]
    assert all(shares)
    assert sorted(name for share in shares for name in share) == sorted(collected())
