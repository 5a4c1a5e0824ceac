"""What starts processes in the tests leaves none behind, however the test run ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

pytestmark = pytest.mark.spark
TESTS = Path(__file__).parents[1]
MARK = "LAKELENS_INTERRUPTED_RUN"
SPARK, LAUNCHER = "org.apache.spark.deploy.SparkSubmit", "org.apache.spark.launcher.Main"
RUN = """
from conftest import {fixture}

def test_uses_it({fixture}):
    pass
"""


def is_spark(command: list[str]) -> bool:
    """Whether a command is that of a JVM with Spark, not of what finds out how to start it."""
    return SPARK in command and LAUNCHER not in command and Path(command[0]).name == "java"


def jvms_of(run: str) -> list[psutil.Process]:
    """Spark's JVMs that were started by a test run or by what it has started; Java's version is asked for before."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == run and is_spark(process.cmdline()):
                found.append(process)
    return found


def wait_for(run: str, count: int) -> bool:
    """Waits until a test run has JVMs, or has none."""
    deadline = time.monotonic() + 120
    while min(len(jvms_of(run)), 1) != count and time.monotonic() < deadline:
        time.sleep(0.05)
    return min(len(jvms_of(run)), 1) == count


@contextmanager
def running(folder: Path, fixture: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A pytest run in a process group of its own, in the set-up of a fixture."""
    file, run = folder / "test_inner.py", uuid4().hex
    file.write_text(RUN.format(fixture=fixture))
    environment = {**os.environ, MARK: run, "PYTHONPATH": f"{TESTS}:{TESTS.parent}"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", folder, file]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process, run
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for jvm in jvms_of(run):
            jvm.kill()


@pytest.mark.parametrize(
    ("fixture", "number"),
    [("connect_url", signal.SIGKILL), ("classic_spark", signal.SIGINT), ("classic_spark", signal.SIGTERM)],
)
def test_a_test_run_that_ends_while_spark_starts_leaves_no_jvm(tmp_path: Path, fixture: str, number: int) -> None:
    with running(tmp_path, fixture) as (process, run):
        assert wait_for(run, 1), (tmp_path / "log").read_text()
        os.killpg(process.pid, number)
        assert process.wait(60) != 0
        assert wait_for(run, 0)
