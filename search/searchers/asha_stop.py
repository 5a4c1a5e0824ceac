"""Asynchronous successive halving by stopping (`stop_once: true`): a trial is continued at once or never.

Rules: Determined 0.38, master/pkg/searcher/asha_stopping.go.
"""

from __future__ import annotations

from ..brackets import Bracket
from .halving import WORST, Halving
from .rung import Rung
from .trial_book import TrialBook


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
