"""The trials that have a metric at one length, best first."""

from __future__ import annotations

import math
from bisect import bisect_left, insort

_Key = tuple[bool, float, int, int]  # not finite, loss, place among equals, trial


class Rung:
    """Ranks trials by loss; a smaller one is better.

    NaN and infinities rank after all finite losses, in order of arrival: compared as a number, NaN would break the
    order of the others.
    """

    def __init__(self, length: int, *, newest_first: bool = False) -> None:
        self.length = length
        self._newest_first = newest_first
        self._arrivals = 0
        self._keys: list[_Key] = []
        self._key_of: dict[int, _Key] = {}  # in order of arrival
        self._losses: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def insert(self, trial: int, loss: float) -> int:
        """Adds a trial and returns its place, from 0."""
        self._arrivals += 1
        if math.isfinite(loss):
            key = (False, loss, -self._arrivals if self._newest_first else self._arrivals, trial)
        else:
            key = (True, 0.0, self._arrivals, trial)
        self._key_of[trial] = key
        self._losses[trial] = loss
        place = bisect_left(self._keys, key)
        self._keys.insert(place, key)
        return place

    @property
    def has_finite(self) -> bool:
        """Whether a trial has a finite loss."""
        return bool(self._keys) and not self._keys[0][0]

    def place(self, trial: int) -> int:
        """The place of a trial, from 0."""
        return bisect_left(self._keys, self._key_of[trial])

    def loss(self, trial: int) -> float:
        """The loss of a trial."""
        return self._losses[trial]

    def remove(self, trial: int) -> None:
        """Removes a trial, if present."""
        key = self._key_of.pop(trial, None)
        if key is not None:
            del self._losses[trial]
            del self._keys[bisect_left(self._keys, key)]


class PromotionRung(Rung):
    """A rung whose trials wait for their promotion."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self._waiting: list[_Key] = []  # a part of the keys, in their order

    def insert(self, trial: int, loss: float) -> int:
        """Adds a trial that waits and returns its place, from 0."""
        place = super().insert(trial, loss)
        insort(self._waiting, self._key_of[trial])
        return place

    def best_waiting(self) -> int | None:
        """The best trial that has not been promoted; None when no trial waits."""
        return self._waiting[0][-1] if self._waiting else None

    def promote_best(self) -> None:
        """Removes the best waiting trial from those that wait."""
        del self._waiting[0]

    def take_waiting(self) -> list[int]:
        """Returns the trials that wait, best first; they can no longer be promoted."""
        taken, self._waiting = self._waiting, []
        return [key[-1] for key in taken]
