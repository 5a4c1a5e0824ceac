"""Shows what ranks write and what they send to the driver, while a slow terminal delays neither ranks nor decisions."""

from __future__ import annotations

import re
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO

from .placement.job import Job, Listener
from .processes.rank_process import append
from .processes.rank_record import KEPT_LOG_LINES, RankEvent

# Usually of about 100 bytes each.
MAX_WAITING = 20_000
SHOWN_KINDS = frozenset({"line", "message"})
# Least seconds between two notices about skipped lines.
_NOTICE_S = 5.0
_NOT_IN_NAMES = re.compile(r"[^\w.-]+")


class Output:
    """Lines and messages of ranks on their way to the user; `put` takes them from any thread.

    Ranks may write faster than the driver prints. Then only each rank's last lines wait, at least those of an
    error. Older ones go into a file in the folder for temporary files, which is created with the first of them.
    """

    def __init__(
        self, job: Job, listener: Listener, record: Callable[[RankEvent], None], most: int = MAX_WAITING
    ) -> None:
        self._name, self._listener, self._record = job.name, listener, record
        self._room = max(2 * KEPT_LOG_LINES, most // job.size)
        self._lock = threading.Lock()
        self._waiting: list[deque[RankEvent]] = [deque() for _ in range(job.size)]
        self._order: deque[int] = deque()
        self._file: IO[bytes] | None = None
        self._problem: OSError | None = None
        self._kept = self._lost = 0
        self._notice_at = 0.0

    @property
    def waits(self) -> bool:
        """Whether there is something to show."""
        return bool(self._order)

    def put(self, event: RankEvent) -> None:
        """Adds a line or a message; skips the oldest of its rank if too many wait."""
        with self._lock:
            of_rank = self._waiting[event.rank]
            if len(of_rank) == self._room:
                self._skip(of_rank.popleft())
            else:
                self._order.append(event.rank)
            of_rank.append(event)

    def show(self, seconds: float) -> None:
        """Shows what waits, in the order in which it came as long as nothing was skipped, for a limited time."""
        deadline = time.monotonic() + seconds
        while (event := self._next()) is not None:
            self._record(event)
            self._listener.hear(event)
            if time.monotonic() >= deadline:
                break
        if deadline >= self._notice_at:
            self._notify()
            self._notice_at = deadline + _NOTICE_S

    def show_rest(self, seconds: float) -> None:
        """Shows everything that waits; what has not been shown after `seconds` is recorded, and goes into the file."""
        deadline = time.monotonic() + seconds
        while (event := self._next()) is not None:
            self._record(event)
            if time.monotonic() < deadline:
                self._listener.hear(event)
            else:
                with self._lock:
                    self._skip(event)
        self._notify()

    def close(self) -> None:
        """Closes the file, which stays."""
        if self._file is not None:
            self._file.close()

    def _next(self) -> RankEvent | None:
        with self._lock:
            return self._waiting[self._order.popleft()].popleft() if self._order else None

    def _skip(self, event: RankEvent) -> None:
        if not self._listener.wants(event):
            return
        text = event.data["text"]
        shown = text if event.kind == "message" else f"[{event.rank}]<{event.data['stream']}> {text}"
        try:
            if self._file is None:
                prefix = f"lakelens-{_NOT_IN_NAMES.sub('-', self._name)[:60]}-"
                self._file = tempfile.NamedTemporaryFile(prefix=prefix, suffix=".log", delete=False, buffering=0)  # noqa: SIM115
            append(self._file, f"{shown}\n".encode("utf-8", "backslashreplace"))
            self._kept += 1
        except OSError as error:
            self._problem = error
            self._lost += 1

    def _notify(self) -> None:
        """Reports how many lines were skipped since the last notice, and their file."""
        with self._lock:
            kept, lost, self._kept, self._lost = self._kept, self._lost, 0, 0
            path = None if self._file is None else Path(self._file.name)
        if kept == lost == 0:
            return
        notice = f"{self._name}: ranks write faster than the driver prints; "
        if kept:
            notice += f"{kept} lines and messages were not shown, and are in {path}"
        if lost:
            notice += (
                f"{'; ' if kept else ''}{lost} were lost: the folder for temporary files takes no more "
                f"({self._problem}); free space there, or set TMPDIR to another folder"
            )
        self._listener.on_notice(notice)
