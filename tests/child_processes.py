"""Processes below the test's own, some of which may end while they are looked at, and none of which stays."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

# Linux only: PR_SET_PDEATHSIG outlives `exec`, and a parent that has ended before it was set sends nothing.
_BOUND = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


def ending_with_this_process(command: Sequence[str | os.PathLike[str]]) -> list[str]:
    """The command whose process is killed when this thread ends, however it ends; start it from the main thread."""
    parts = [os.fspath(part) for part in command]
    if sys.platform != "linux":
        return parts
    return [sys.executable, "-I", "-S", "-c", _BOUND, str(os.getpid()), *parts]


def run_to_end(
    command: Sequence[str | os.PathLike[str]], code: int | None = 0, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs a command and returns what it printed; fails with it if the exit code is another one. None takes any."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert code is None or done.returncode == code, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done


def found_in_log(pattern: str, log: Path, process: subprocess.Popen[bytes], timeout_s: float) -> str:
    """Waits until a process has written a line; returns the group of its pattern."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(pattern, log.read_text(errors="replace")):
            return found[1]
        time.sleep(0.05)
    raise AssertionError(f"the process has not started:\n{log.read_text(errors='replace')[-3000:]}")


def started_with(process: psutil.Process, word: str) -> bool:
    """Tells whether `word` is in the command of a process that is still there."""
    try:
        return any(word in part for part in process.cmdline())
    except psutil.Error:
        return False


def children_started_with(word: str, parent: int | None = None) -> list[psutil.Process]:
    """The living processes below this one, or below another, with `word` in their command."""
    return [child for child in psutil.Process(parent).children(recursive=True) if started_with(child, word)]


def descriptors_of_children() -> int:
    """Descriptors that the processes below this one hold open."""
    found = 0
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            found += child.num_fds()
    return found


def kill_family(child: subprocess.Popen) -> None:
    """Kills a child and all below it, among them a JVM in a session of its own, and waits for their ends."""
    family = _family(child)
    _send(family, signal.SIGKILL)
    child.wait()
    _wait_for(family, {psutil.STATUS_ZOMBIE}, time.monotonic() + 60)


@contextlib.contextmanager
def stopped_family(child: subprocess.Popen, deadline: float) -> Iterator[None]:
    """Lets a child and all below it stand still."""
    family = _family(child)
    _send(family, signal.SIGSTOP)
    _wait_for(family, {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE}, deadline)
    try:
        yield
    finally:
        _send(family, signal.SIGCONT)


def _family(child: subprocess.Popen) -> list[psutil.Process]:
    try:
        process = psutil.Process(child.pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _wait_for(family: list[psutil.Process], states: set[str], deadline: float) -> None:
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            while process.is_running() and process.status() not in states:
                assert time.monotonic() < deadline
                time.sleep(0.001)


def _send(family: list[psutil.Process], number: int) -> None:
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
