"""Reports the collectives that this rank has entered and left, so that the driver sees which rank waits for which.

While a call into C holds the interpreter (a sort, unpickling, `sum(range(n))`), the reporting thread cannot run, and
its last report may be out of date. A waiting rank therefore repeats its report with every sample, and counts as waiting
only up to the last report.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

from .frames import Kind
from .process_context import RankLink

SAMPLE_S = 1.0


class CollectiveReports:
    """A thread that reports two counts."""

    def __init__(self, link: RankLink, counts: Callable[[], tuple[int, int]]) -> None:
        self._link, self._counts = link, counts
        self._reported = (0, 0)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._report, name="lakelens-stall", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def _report(self) -> None:
        while not self._stopped.wait(SAMPLE_S):
            self._sample()

    def _sample(self) -> None:
        entered, left = self._counts()
        if entered > left or (entered, left) != self._reported:
            self._reported = (entered, left)
            self._link.send(Kind.PROGRESS, {"entered": entered, "left": left})

    def close(self) -> None:
        """Reports once more and stops: the last sample may show a collective that this rank has left since."""
        if not self._thread.is_alive():
            return  # closed already, or in a fork, whose counts no longer change
        self._stopped.set()
        self._thread.join(timeout=2)
        if not self._thread.is_alive():
            self._sample()
