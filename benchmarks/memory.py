"""Memory and processor time of a process and all its descendants."""

from __future__ import annotations

import threading
from collections import defaultdict

import psutil

_KINDS = (("java", "jvm"), ("pyspark.daemon", "python worker"), ("pyspark/daemon", "python worker"))


class PeakMemory:
    """Watches a process tree while a block runs.

    Memory is the proportional set size (Linux `Pss`): pages that several processes share count once in the sum.
    Reading it costs some milliseconds for each gigabyte, so a block that is watched is not one to be timed.
    """

    def __init__(self, pid: int, period_s: float = 0.1) -> None:
        self.total_bytes = 0  # The largest sum over the tree seen at one look
        self.by_kind: dict[str, int] = defaultdict(int)  # The largest single process of each kind
        self._pid = pid
        self._period_s = period_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def as_json(self) -> dict[str, float]:
        """Peaks in MiB."""
        peaks = {"tree_mib": round(self.total_bytes / 2**20)}
        return {**peaks, **{f"{kind}_mib": round(value / 2**20) for kind, value in sorted(self.by_kind.items())}}

    def _watch(self) -> None:
        while True:
            self._look()
            if self._ended.wait(self._period_s):
                return

    def _look(self) -> None:
        total = 0
        for process in tree(self._pid):
            try:
                used = process.memory_full_info().pss
                kind = "main" if process.pid == self._pid else _kind(process.cmdline())
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            total += used
            self.by_kind[kind] = max(self.by_kind[kind], used)
        self.total_bytes = max(self.total_bytes, total)


def tree(pid: int) -> list[psutil.Process]:
    """A process and all its descendants; empty when it is gone."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds(pid: int) -> float:
    """Sums the processor time, user and system, of a process and all its descendants, ended ones included.

    On a machine that is shared, work per processor second is steadier than work per second of the clock.
    """
    total = 0.0
    for process in tree(pid):
        try:
            total += sum(process.cpu_times()[:4])
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


def _kind(command: list[str]) -> str:
    text = " ".join(command)
    for part, kind in _KINDS:
        if part in text:
            return kind
    return "other"
