"""Queues of the driver's events from ranks: deciding events, and separately those that are only shown."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from ..processes.rank_record import KEPT_LOG_LINES, RankEvent

# Usually of about 100 bytes each.
MAX_SHOWN = 20_000

T = TypeVar("T")


class EventInbox(Generic[T]):
    """Takes from any thread, gives to one.

    Ranks may write faster than the driver prints. Deciding events therefore never wait behind lines and messages, and
    only each rank's last lines are kept: at least the number in the log of an error.

    Args:
        size: Number of ranks.
        skipped: Called with each dropped line or message, the oldest of its rank, from the thread that puts.
        most: How many lines and messages of all ranks to keep.
    """

    def __init__(self, size: int, skipped: Callable[[RankEvent], None], most: int = MAX_SHOWN) -> None:
        self._skipped = skipped
        self._room = max(2 * KEPT_LOG_LINES, most // size)
        # A token of None means that there is something to show.
        self._deciding: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._shown: list[deque[RankEvent]] = [deque() for _ in range(size)]
        self._order: deque[int] = deque()

    def put(self, item: T) -> None:
        """Adds a deciding event."""
        self._deciding.put(item)

    def put_shown(self, event: RankEvent) -> None:
        """Adds a line or a message; skips the oldest of its rank if there are too many."""
        with self._lock:
            of_rank = self._shown[event.rank]
            if len(of_rank) == self._room:
                self._skipped(of_rank.popleft())
            else:
                self._order.append(event.rank)
            of_rank.append(event)
            first = len(self._order) == 1
        if first:
            self._deciding.put(None)

    def take(self, timeout_s: float) -> list[T]:
        """Returns the queued deciding events; waits `timeout_s` if both queues are empty."""
        items = []
        try:
            items.append(self._deciding.get(timeout=0.0 if self._order else timeout_s))
            items += [self._deciding.get_nowait() for _ in range(self._deciding.qsize())]
        except queue.Empty:
            pass
        return [item for item in items if item is not None]

    def take_shown(self) -> RankEvent | None:
        """Returns the next line or message, in the order in which they came as long as none was skipped."""
        with self._lock:
            return self._shown[self._order.popleft()].popleft() if self._order else None
