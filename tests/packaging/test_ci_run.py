"""`.ci/run`: what it leaves when it is ended, and which exit code counts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.system

# In place of make: the tests wait, or fail once and pass when they are tried again.
WAITING = """#!/bin/sh
case "$*" in *test-all* | *test-airflow*) echo $$ >>"$STARTED"; sleep 600 ;; esac
"""
FAILING_ONCE = """#!/bin/sh
case "$*" in
    *--last-failed*) echo "1 passed in 1.00s" ;;
    *test-all*)
        echo "FAILED tests/test_one.py::test - Error"
        echo "make: *** [Makefile:1: test-all] Error 1"
        exit 2 ;;
esac
"""
# A plugin that writes the names of the tests that are collected, and of those in each of three shares.
SHARES = """
import json, os, pathlib

def pytest_collection_finish(session):
    outside = next(one._outside for one in session.config.pluginmanager.get_plugins() if hasattr(one, "_outside"))
    names = [item.nodeid for item in session.items]
    left_out = [{item.nodeid for item in outside(f"{share}/3", session.items)} for share in range(3)]
    shares = [[name for name in names if name not in others] for others in left_out]
    pathlib.Path(os.environ["SHARES"]).write_text(json.dumps([names, shares]), encoding="utf-8")
"""


@pytest.fixture
def copy(checkout: Path, tmp_path: Path) -> Path:
    """A folder with CI's script alone."""
    (tmp_path / "copy" / ".ci").mkdir(parents=True)
    shutil.copy(checkout / ".ci" / "run", tmp_path / "copy" / ".ci" / "run")
    return tmp_path / "copy"


def start(copy: Path, make: str) -> subprocess.Popen[str]:
    (copy / "make").write_text(make, encoding="utf-8")
    (copy / "make").chmod(0o755)
    variables = os.environ | {"PATH": f"{copy}:{os.environ['PATH']}", "STARTED": str(copy / "started")}
    return subprocess.Popen([copy / ".ci" / "run"], env=variables, stdout=subprocess.PIPE, text=True)


def test_a_run_that_is_terminated_ends_all_that_it_has_started(copy: Path) -> None:
    run = start(copy, WAITING)
    deadline = time.monotonic() + 60
    while len(started := _lines(copy / "started")) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    run.terminate()
    run.communicate(timeout=60)
    assert run.returncode == 143
    assert len(started) == 2
    while (left := [number for number in started if _runs(int(number))]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []
    assert list((copy / ".ci").glob("scratch-*")) == []


def test_tests_that_pass_when_they_are_tried_again_count_as_passed_and_are_named(copy: Path) -> None:
    run = start(copy, FAILING_ONCE)
    said, _ = run.communicate(timeout=60)
    assert run.returncode == 0
    assert "modules with tests that failed and were tried again alone:\ntest-all: tests/test_one.py" in said


def _runs(process: int) -> bool:
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split() if path.exists() else []


def test_the_shares_of_the_long_tests_are_disjoint_and_together_all_of_them(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "shares.py").write_text(SHARES, encoding="utf-8")
    written = tmp_path / "shares.json"
    variables = os.environ | {"PYTHONPATH": str(tmp_path), "SHARES": str(written)}

    def collected(*arguments: str) -> list[str]:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "long", "-p", "shares", *arguments]
        command += ["tests/packaging", "tests/etl/versions"]
        told = subprocess.run(command, cwd=checkout, env=variables, stdout=subprocess.PIPE, text=True, check=True)
        return [line for line in told.stdout.splitlines() if "::" in line]

    everything = collected()
    names, shares = json.loads(written.read_text(encoding="utf-8"))
    assert names == everything
    assert all(shares)
    assert sorted(name for share in shares for name in share) == sorted(everything)
    assert sorted(collected("--long-share", "0/3")) == sorted(shares[0])
    connected = [{name.partition("::")[0] for name in share if "[connect" in name} for share in shares]
    assert sum(map(len, connected)) == len(set.union(*connected)) > 1  # what such tests of a module share is made once
