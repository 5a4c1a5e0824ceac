"""Runs a long command with its whole output in a log file and one line of progress in sight."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

_REPORT_EVERY_S = 20.0
_TERMINAL_EVERY_S = 0.5


def run_logged(
    command: Sequence[str],
    log: Path,
    title: str,
    progress_of: Callable[[str], str | None],
    environment: Mapping[str, str] | None = None,
    keep_open: Sequence[int] = (),
) -> int:
    """Runs `command`, and ends it with all its children when this process is interrupted.

    Progress is shown on stderr: in place on a terminal, else one line every 20 s.
    """
    with log.open("w", encoding="utf-8") as sink:
        process = subprocess.Popen(
            command,
            env=None if environment is None else dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            pass_fds=tuple(keep_open),
        )
        try:
            if process.stdout is not None:
                _follow(process.stdout, sink, title, progress_of)
            return process.wait()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def say(text: str) -> None:
    """Writes one line to stderr, so that stdout stays what a command's caller reads."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def last_lines(text: str, count: int = 25) -> str:
    """Returns the last `count` lines of `text`."""
    return "\n".join(text.strip().splitlines()[-count:])


def _follow(output: IO[str], sink: IO[str], title: str, progress_of: Callable[[str], str | None]) -> None:
    terminal = sys.stderr.isatty()
    started = shown = time.monotonic()
    progress = ""
    for line in output:
        sink.write(line)
        progress = progress_of(line) or progress
        now = time.monotonic()
        if now - shown >= (_TERMINAL_EVERY_S if terminal else _REPORT_EVERY_S):
            shown = now
            text = f"    {title}, {now - started:.0f} s: {progress}"
            if terminal:
                sys.stderr.write(f"\r\033[K{text[:100]}")
                sys.stderr.flush()
            else:
                say(text)
    if terminal:
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()
