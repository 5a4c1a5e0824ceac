"""Asynchronous successive halving by promotion (`stop_once: false`): trials pause, and continue when they are promoted.

Rules: Determined 0.37, master/pkg/searcher/asha.go; L. Li et al., A System for Massively Parallel Hyperparameter
Tuning, MLSys 2020, algorithm 2. Ours: no bracket ends without a trial at the whole length, unless each of its trials
has failed or is not finite; trials that Determined stops earlier wait until one has reached it.
"""

from __future__ import annotations

import math

from ..brackets import Bracket
from .halving import WORST, Halving
from .rung import PromotionRung
from .trial_book import TrialBook


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
