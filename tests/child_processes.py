"""Processes below the test's own, some of which may end while they are looked at."""

from __future__ import annotations

import contextlib

import psutil


def started_with(process: psutil.Process, word: str) -> bool:
    """Tells whether `word` is in the command of a process that is still there."""
    try:
        return any(word in part for part in process.cmdline())
    except psutil.Error:
        return False


def children_started_with(word: str) -> list[psutil.Process]:
    """The living processes below this one with `word` in their command."""
    return [child for child in psutil.Process().children(recursive=True) if started_with(child, word)]


def descriptors_of_children() -> int:
    """Descriptors that the processes below this one hold open."""
    found = 0
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            found += child.num_fds()
    return found
