"""The numbered steps that a demo prints, with the time of each."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TextIO


class Story:
    """Prints numbered steps, indents what they print, and keeps the seconds that each took."""

    def __init__(self, steps: int) -> None:
        self.seconds: dict[str, float] = {}
        self._steps, self._started = steps, time.perf_counter()

    @contextmanager
    def step(self, key: str, title: str) -> Iterator[None]:
        """Prints the title, runs the body, prints its time."""
        print(f"\n[{len(self.seconds) + 1}/{self._steps}] {title}", flush=True)
        start = time.perf_counter()
        with redirect_stdout(_Indented(sys.stdout)):
            yield
            self.seconds[key] = round(time.perf_counter() - start, 1)
            print(f"{self.seconds[key]:.1f} s", flush=True)

    def times(self) -> dict[str, float]:
        """Returns the seconds of each step, and until now as `total`."""
        return {**self.seconds, "total": round(time.perf_counter() - self._started, 1)}


class _Indented(io.TextIOBase):
    """Writes text to another stream with every line moved to the right."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._at_line_start = True

    def write(self, text: str) -> int:
        for line in text.splitlines(keepends=True):
            self._stream.write(f"      {line}" if self._at_line_start and line.strip() else line)
            self._at_line_start = line.endswith("\n")
        return len(text)

    def flush(self) -> None:
        self._stream.flush()
