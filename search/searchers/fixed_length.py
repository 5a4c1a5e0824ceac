"""Searches whose trials all train to the whole length."""

from __future__ import annotations

from .base import Definition, SearchMethod


class FixedLengthSearcher(SearchMethod):
    """Creates trials, a limited number at a time, and trains each to the end: `single` one, `random` drawn ones."""

    def __init__(self, definition: Definition, total: int | None = None) -> None:
        super().__init__(definition)
        self.total = total = total or self.settings.max_trials
        self.replaces_invalid = self.settings.name == "random"
        self._at_once = self.settings.max_concurrent_trials or total
        self._running = 0
        self._ended = 0

    @property
    def finished(self) -> bool:
        """Whether all trials have ended."""
        return self._ended == self.total

    def _start(self) -> None:
        self._fill()

    def _validated(self, trial: int, loss: float) -> None:
        self._trials.stop(trial)
        self._end()

    def _failed(self, trial: int) -> None:
        self._end()

    def _invalid(self, trial: int) -> None:
        if self.replaces_invalid:
            self._running -= 1
            self._fill()
        else:
            self._end()

    def _end(self) -> None:
        self._running -= 1
        self._ended += 1
        self._fill()

    def _fill(self) -> None:
        while self._running < self._at_once and self._running + self._ended < self.total:
            self._trials.create(0, self.settings.max_length.amount)
            self._running += 1
