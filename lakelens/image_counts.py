"""Counts images while Spark's tasks work on them: Spark reports nothing about a task before its end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

_GOOD, _BAD = b"+", b"-"


@contextlib.contextmanager
def image_counter(file: str | None) -> Iterator[Callable[[bool], None]]:
    """Gives what counts an image in a task, as good or bad.

    It appends one byte to a file, in one step, so that many tasks may. It counts nothing where the file is out of
    reach, as on another machine.
    """
    try:
        descriptor = None if file is None else os.open(file, os.O_WRONLY | os.O_APPEND)
    except OSError:
        descriptor = None

    def count(is_good: bool) -> None:
        if descriptor is not None:
            with contextlib.suppress(OSError):  # a full disk has its own error
                os.write(descriptor, _GOOD if is_good else _BAD)

    try:
        yield count
    finally:
        if descriptor is not None:
            os.close(descriptor)


class ImageCount:
    """Reads what tasks have counted."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._place = self._done = self._bad = 0

    def read(self) -> tuple[int, int]:
        """Returns how many images are done, and how many of these are bad."""
        with contextlib.suppress(OSError), self._file.open("rb") as counted:
            counted.seek(self._place)
            new = counted.read()
            self._place += len(new)
            self._done += len(new)
            self._bad += new.count(_BAD)
        return self._done, self._bad
