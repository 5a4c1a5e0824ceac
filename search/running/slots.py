"""The slots of a place (the driver, or a Spark application), shared by the searches that run there.

A trial gets all its slots at once or none, so that no two trials hold half of theirs each and wait.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator

DEFAULT_PRIORITY = 42
_pools: dict[str, SlotPool] = {}
_pools_lock = threading.Lock()


class Share:
    """The slots of one search.

    Args:
        pool: The slots of the place.
        size: Slots that a trial takes.
        priority: 1 is first.
        most: The most slots that the search takes together; None for no limit.

    Attributes:
        held: Slots that its trials hold.
        wants: Whether a trial waits for slots.
    """

    def __init__(self, pool: SlotPool, size: int, priority: int, most: int | None) -> None:
        self.pool, self.size, self.priority = pool, size, priority
        self.most = most
        self.held = 0
        self.wants = False

    def ask(self, wants: bool) -> None:
        """Says whether a trial of the search waits for slots."""
        with self.pool.lock:
            self.wants = wants

    def take(self) -> tuple[int, ...] | None:
        """Takes the slots of one trial; None while they are not free, or another search is to get them first."""
        return self.pool.take(self)

    def give_back(self, slots: tuple[int, ...]) -> None:
        """Gives slots back."""
        self.pool.give_back(self, slots)

    def may_keep(self) -> bool:
        """Tells whether the slots of a trial that has ended go to this search again, rather than to another one."""
        return self.pool.may_keep(self)

    def has_room(self, held: int) -> bool:
        """Tells whether its limit lets a trial more run beside the slots that are held."""
        return self.most is None or held + self.size <= self.most


class SlotPool:
    """Slots by number. A free slot goes to the search of the first priority that holds the fewest.

    Args:
        capacity: Counts the slots that there are; executors come and go.
    """

    def __init__(self, capacity: Callable[[], int]) -> None:
        self.lock = threading.RLock()
        self.capacity = capacity
        self.shares: list[Share] = []
        self._taken: set[int] = set()

    def take(self, share: Share) -> tuple[int, ...] | None:
        """Takes the slots of one trial; see `Share.take`."""
        capacity = self.capacity()
        with self.lock:
            free = capacity - len(self._taken)
            if (
                free < share.size
                or not share.has_room(share.held)
                or self._first(share, share.held, capacity) is not share
            ):
                return None
            numbers = (number for number in itertools.count() if number not in self._taken)
            slots = tuple(itertools.islice(numbers, share.size))
            self._taken.update(slots)
            share.held += share.size
            return slots

    def give_back(self, share: Share, slots: tuple[int, ...]) -> None:
        """Takes slots back."""
        with self.lock:
            self._taken.difference_update(slots)
            share.held -= len(slots)

    def may_keep(self, share: Share) -> bool:
        """Tells whether a share would get the slots that it gave back; see `Share.may_keep`."""
        capacity = self.capacity()
        with self.lock:
            return len(self._taken) <= capacity and self._first(share, share.held - share.size, capacity) is share

    def _first(self, share: Share, held: int, capacity: int) -> Share:
        """Finds whose turn it is: `share`, were it to hold `held` slots, or another one that wants some and fits in."""

        def place(each: Share) -> tuple[int, int, int]:
            return each.priority, held if each is share else each.held, self.shares.index(each)

        others = [each for each in self.shares if each is not share and each.wants and each.has_room(each.held)]
        return min([share, *(each for each in others if each.size <= capacity)], key=place)


@contextlib.contextmanager
def share_of(
    place: str, capacity: Callable[[], int], *, size: int, priority: int | None, most: int | None
) -> Iterator[Share]:
    """Joins the searches of a place.

    Args:
        place: The driver, or a Spark application.
        capacity: Counts its slots.
        size: Slots that a trial takes.
        priority: 1 is first; None is 42, as in Determined.
        most: The most slots that the search takes together.
    """
    with _pools_lock:
        pool = _pools.setdefault(place, SlotPool(capacity))
        share = Share(pool, size, priority or DEFAULT_PRIORITY, most)
        pool.shares.append(share)
    try:
        yield share
    finally:
        with _pools_lock:
            pool.shares.remove(share)
            if not pool.shares:
                del _pools[place]
