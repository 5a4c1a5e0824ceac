"""`adaptive_asha`: brackets of successive halving side by side."""

from __future__ import annotations

from ..brackets import plan_brackets
from .asha_promote import PromotionHalving
from .asha_stop import StoppingHalving
from .base import Definition, SearchMethod


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
