"""What both variants of asynchronous successive halving share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from ..brackets import Bracket
from .rung import Rung
from .trial_book import TrialBook

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
