"""Asynchronous successive halving, by stopping or by promotion, and `adaptive_asha`: brackets of it side by side.

Rules of stopping (`stop_once: true`): Determined 0.38, master/pkg/searcher/asha_stopping.go. Of promotion (`stop_once:
false`): Determined 0.37, master/pkg/searcher/asha.go; L. Li et al., A System for Massively Parallel Hyperparameter
Tuning, MLSys 2020, algorithm 2. Ours: no bracket ends without a trial at the whole length, unless each of its trials
has failed or is not finite; trials that Determined stops earlier wait until one has reached it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from typing import Generic, TypeVar

from ..brackets import Bracket, plan_brackets
from .base import Definition, SearchMethod, TrialBook

_Key = tuple[bool, float, int, int]  # not finite, loss, place among equals, trial


class Rung:
    """Ranks trials by loss; a smaller one is better."""

    # NaN and infinities rank after all finite losses, in order of arrival: compared as a number, NaN would break the
    # order.

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


WORST = math.nan  # ranks after every finite loss

R = TypeVar("R", bound=Rung)


class Halving(ABC, Generic[R]):
    """One bracket at work."""

    def __init__(self, index: int, bracket: Bracket, rungs: list[R], book: TrialBook) -> None:
        self.index = index
        self.bracket = bracket
        self.rungs = rungs
        self.book = book
        self.limit = min(bracket.concurrent, bracket.trials)
        self._rung_of: dict[int, int] = {}  # of the trials that run: the rung that they train for
        self._training = [0] * len(rungs)  # the number of these, by rung
        self._counted = 0

    @property
    def finished(self) -> bool:
        """Whether no trial runs and none will be created."""
        return self._counted == self.bracket.trials and not self._rung_of

    @abstractmethod
    def validated(self, trial: int, loss: float) -> None:
        """Decides after a validation; a smaller loss is better."""

    @abstractmethod
    def failed(self, trial: int) -> None:
        """Counts a trial that ended with an error as the worst of its rung."""

    def invalid(self, trial: int) -> None:
        """Forgets a trial with invalid hyperparameters and creates another in its place."""
        self._leave(trial)
        for rung in self.rungs:
            rung.remove(trial)
        self._counted -= 1
        self.book.stop(trial)
        self._create()
        self.fill()

    def fill(self) -> None:
        """Creates trials while fewer run than the limit."""
        while len(self._rung_of) < self.limit and self._counted < self.bracket.trials:
            self._create()

    def _create(self) -> None:
        trial = self.book.create(self.index, self.rungs[0].length)
        self._enter(trial, 0)
        self._counted += 1

    def _continue(self, trial: int, rung: int) -> None:
        self._enter(trial, rung)
        self.book.proceed(trial, self.rungs[rung].length)

    def _enter(self, trial: int, rung: int) -> None:
        self._rung_of[trial] = rung
        self._training[rung] += 1

    def _leave(self, trial: int) -> int:
        rung = self._rung_of.pop(trial)
        self._training[rung] -= 1
        return rung


class StoppingHalving(Halving[Rung]):
    """Stops a trial that is not among the best of its rung when it arrives; of equals the last ranks higher."""

    def __init__(self, index: int, bracket: Bracket, book: TrialBook) -> None:
        rungs = [Rung(length, newest_first=True) for length in bracket.lengths]
        super().__init__(index, bracket, rungs, book)

    def validated(self, trial: int, loss: float) -> None:
        """Passes the trial through every rung that it has reached and is good enough for."""
        reached = self.book.trials[trial].reached
        for index in range(self._leave(trial), len(self.rungs)):
            rung = self.rungs[index]
            if reached < rung.length:
                self._continue(trial, index)
                return
            place = rung.insert(trial, loss)
            if place >= max(self.bracket.kept(len(rung)), 1):
                break
        self.book.stop(trial)
        self.fill()

    def failed(self, trial: int) -> None:
        """Counts the trial as the worst of the rung that it trained for."""
        self.rungs[self._leave(trial)].insert(trial, WORST)
        self.fill()


class PromotionHalving(Halving[PromotionRung]):
    """Promotes trials that are among the best of their rung, even late; of equals the first ranks higher."""

    def __init__(self, index: int, bracket: Bracket, book: TrialBook) -> None:
        rungs = [PromotionRung(length) for length in bracket.lengths]
        super().__init__(index, bracket, rungs, book)

    def validated(self, trial: int, loss: float) -> None:
        """Ranks the trial, then promotes, creates and closes."""
        self._rank(trial, self._leave(trial), loss)
        self.fill()
        self._close()

    def failed(self, trial: int) -> None:
        """Ranks the trial as the worst of the rung that it trained for, and of those to which it is still promoted."""
        self._rank(trial, self._leave(trial), WORST)
        self.fill()
        self._close()

    def fill(self) -> None:
        """Promotes trials up to the number of concurrent trials; creates trials if none can be promoted."""
        while len(self._rung_of) < self.limit and self._promote():
            pass
        super().fill()

    def _rank(self, trial: int, index: int, loss: float) -> None:
        rung = self.rungs[index]
        rung.insert(trial, loss)
        if index == len(self.rungs) - 1:
            rung.take_waiting()
            if not self.book.trials[trial].failed:
                self.book.stop(trial)

    def _promote(self) -> bool:
        """Promotes one trial, from the highest rung with a candidate."""
        for index in range(len(self.rungs) - 2, -1, -1):
            trial = self._promotable(index)
            if trial is not None:
                self.rungs[index].promote_best()
                self._advance(trial, index)
                return True
        return False

    def _promotable(self, index: int) -> int | None:
        """The best waiting trial of a rung, if it is among those to promote."""
        rung = self.rungs[index]
        trial = rung.best_waiting()
        if trial is None or rung.place(trial) >= self.bracket.kept(len(rung)):
            return None
        return trial

    def _advance(self, trial: int, index: int) -> None:
        """Continues a promoted trial, or ranks it at once if it has failed or has already reached the next rung."""
        found = self.book.trials[trial]
        if found.failed or found.reached >= self.rungs[index + 1].length:
            self._rank(trial, index + 1, self.rungs[index].loss(trial))
        else:
            self._continue(trial, index + 1)

    def _promote_last(self) -> bool:
        """Promotes the best trial of the highest rung that has one to promote, however few others the rung has."""
        for index in range(len(self.rungs) - 2, -1, -1):
            trial = self.rungs[index].best_waiting()
            if trial is not None and math.isfinite(self.rungs[index].loss(trial)):
                self.rungs[index].promote_best()
                self._advance(trial, index)
                return True
        return False

    def _close(self) -> None:
        """Stops waiting trials of rungs that no other trial can reach any more, once a trial has the whole length."""
        if self._counted < self.bracket.trials:
            return
        while not self.rungs[-1].has_finite:
            if self._rung_of:
                return
            if not self._promote_last():
                break
        for index in range(len(self.rungs) - 1):
            if self._training[index]:
                return
            for trial in self.rungs[index].take_waiting():
                if not self.book.trials[trial].failed:
                    self.book.stop(trial)


class TournamentSearcher(SearchMethod):
    """Hands each event to the bracket that created the trial; brackets know nothing of each other."""

    def __init__(self, definition: Definition) -> None:
        super().__init__(definition)
        halving = StoppingHalving if self.settings.stop_once else PromotionHalving
        self._brackets: list[StoppingHalving | PromotionHalving] = [
            halving(index, bracket, self._trials) for index, bracket in enumerate(plan_brackets(self.settings))
        ]

    @property
    def finished(self) -> bool:
        """Whether all brackets are finished."""
        return all(bracket.finished for bracket in self._brackets)

    def _start(self) -> None:
        for bracket in self._brackets:
            bracket.fill()

    def _validated(self, trial: int, loss: float) -> None:
        self._bracket_of(trial).validated(trial, loss)

    def _failed(self, trial: int) -> None:
        self._bracket_of(trial).failed(trial)

    def _invalid(self, trial: int) -> None:
        self._bracket_of(trial).invalid(trial)

    def _bracket_of(self, trial: int) -> StoppingHalving | PromotionHalving:
        return self._brackets[self._trials.trials[trial].bracket]
