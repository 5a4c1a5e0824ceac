"""The slots of a place (the driver, or a Spark application), shared by the searches that run there.

A trial gets all its slots at once or none, so that two trials cannot block each other with half of their slots.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

DEFAULT_PRIORITY = 42
_pools: dict[str, SlotPool] = {}
_pools_lock = threading.Lock()


@dataclass
class SlotPool:
    """The slots of a place, by number. A free slot goes to the search of the first priority that holds the fewest."""

    shares: list[Share] = field(default_factory=list)  # The searches
    taken: set[int] = field(default_factory=set)  # The slots that trials hold
    lock: threading.Lock = field(default_factory=threading.Lock)  # Of both


class Share:
    """The slots of one search.

    Attributes:
        held: Slots that its trials hold.
        wants: Whether a trial waits for slots.
    """

    def __init__(self, pool: SlotPool, capacity: Callable[[], int], size: int, priority: int, most: int | None) -> None:
        self.pool, self.size, self.priority = pool, size, priority
        self.capacity, self.most = capacity, most
        self.held = 0
        self.wants = False

    def ask(self, wants: bool) -> None:
        """Notes whether a trial of the search waits for slots."""
        with self.pool.lock:
            self.wants = wants

    def take(self) -> tuple[int, ...] | None:
        """Takes the slots of one trial; None while they are not free, or another search has priority."""
        capacities = self._capacities()
        with self.pool.lock:
            free = capacities[self] - len(self.pool.taken)
            if free < self.size or not self.has_room(self.held) or self._first(self.held, capacities) is not self:
                return None
            numbers = (number for number in itertools.count() if number not in self.pool.taken)
            slots = tuple(itertools.islice(numbers, self.size))
            self.pool.taken.update(slots)
            self.held += self.size
            return slots

    def give_back(self, slots: tuple[int, ...]) -> None:
        """Gives slots back."""
        with self.pool.lock:
            self.pool.taken.difference_update(slots)
            self.held -= len(slots)

    def may_keep(self) -> bool:
        """Returns whether the slots of a trial that has ended go to this search again, rather than to another one."""
        capacities = self._capacities()
        with self.pool.lock:
            kept = self._first(self.held - self.size, capacities) is self
            return kept and len(self.pool.taken) <= capacities[self]

    def has_room(self, held: int) -> bool:
        """Returns whether its limit allows one more trial in addition to the held slots."""
        return self.most is None or held + self.size <= self.most

    def _capacities(self) -> dict[Share, int]:
        # Outside the lock: on executors this asks the JVM.
        return {share: share.capacity() for share in list(self.pool.shares)}

    def _first(self, held: int, capacities: Mapping[Share, int]) -> Share:
        """Finds which share is next: this one, if it held `held` slots, or another that waits for slots and fits."""
        shares = self.pool.shares

        def place(each: Share) -> tuple[int, int, int]:
            return each.priority, held if each is self else each.held, shares.index(each)

        others = [each for each in shares if each is not self and each.wants and each.has_room(each.held)]
        return min([self, *(each for each in others if each.size <= capacities.get(each, 0))], key=place)


@contextlib.contextmanager
def share_of(
    place: str, capacity: Callable[[], int], *, size: int, priority: int | None, most: int | None
) -> Iterator[Share]:
    """Joins the searches of a place."""
    with _pools_lock:
        pool = _pools.setdefault(place, SlotPool())
        share = Share(pool, capacity, size, priority or DEFAULT_PRIORITY, most)
        pool.shares.append(share)
    try:
        yield share
    finally:
        with _pools_lock:
            pool.shares.remove(share)
            if not pool.shares:
                del _pools[place]
