"""Lets ranks agree, every half second or so, on whether to end at a step between two validations."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .world import World

_EVERY_S = 0.5
_MOST_STEPS = 10_000


@dataclass(frozen=True)
class Wish:
    """The requests of at least one rank at a step."""

    pause: bool  # The driver's request to pause
    stop: bool  # A callback's request to stop


class Agreement:
    """Decides at which steps ranks compare their requests, and compares them by one small allreduce.

    The number of steps between two comparisons follows rank 0's step time, so that all ranks compare at the same step.
    """

    def __init__(self, world: World, step: int) -> None:
        self._world = world
        self._last = step
        self._due = step + 1
        self._timed_from = time.perf_counter()

    def due(self, step: int) -> bool:
        """Returns whether ranks compare after a step."""
        return step >= self._due

    def reached(self, step: int, wish: Wish) -> Wish:
        """Compares the requests if due; every rank calls it after every step."""
        import numpy as np

        now = time.perf_counter()
        interval = steps_between((now - self._timed_from) / max(1, step - self._last)) if self._world.rank == 0 else 0
        mine = np.asarray([int(wish.pause), int(wish.stop), interval], np.int64)
        ((pauses, stops, steps),) = self._world.sums([mine], name="lakelens.agreement")
        self._last, self._due, self._timed_from = step, step + int(steps), time.perf_counter()
        return Wish(bool(pauses), bool(stops))


def steps_between(step_s: float) -> int:
    """Chooses the number of steps between two comparisons."""
    return max(1, min(_MOST_STEPS, int(_EVERY_S / max(step_s, 1e-9))))
