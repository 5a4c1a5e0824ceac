"""What all searchers share: events in, operations out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from numbers import Real
from typing import Any

from ...errors import InvalidArgumentError, SearcherEventError
from ...options import whole_number
from ...training.configuration.rules import shown
from ...training.configuration.space import Space
from ..operations import Operation
from ..settings import SearcherSettings, read_sections
from .trial_book import ERROR, INVALID, PAUSED, TrialBook


@dataclass(frozen=True)
class Definition:
    """What a search is made from."""

    settings: SearcherSettings  # The parsed `searcher` section
    space: Space  # The parsed `hyperparameters` section
    seed: int  # Of the draws

    @classmethod
    def read(cls, searcher_config: Any, hyperparameters: Any, seed: int) -> Definition:
        """Reads and checks both sections."""
        sections = read_sections(searcher_config, hyperparameters)
        return cls(sections.searcher, Space.read(sections.hyperparameters), seed)


class SearchMethod(ABC):
    """Decides which trials to start, to continue and to stop.

    Call `start` once, then carry out the operations and tell `validated` or `exited` what happened to each trial. A
    trial whose validation brings no operation for it is paused.

    Attributes:
        replaces_invalid: Whether trials with invalid hyperparameters are replaced by new draws and not counted.
    """

    replaces_invalid = True

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.settings = definition.settings
        self._trials = TrialBook(self.hyperparameters, self.settings.max_length.amount)
        self._sign = 1.0 if self.settings.minimized else -1.0

    def start(self) -> list[Operation]:
        """Begins the search.

        Raises:
            SearcherEventError: If it has begun.
        """
        if self._trials.trials:
            raise SearcherEventError("start: the search has begun; answer the operations that it has given")
        self._start()
        return self._trials.take()

    def validated(self, trial: int, length: int, metric: float) -> list[Operation]:
        """Takes the metric of a trial that has reached its requested length.

        Args:
            trial: Its number.
            length: What it has reached, counted from its beginning, in the searcher's unit; may exceed the request.
            metric: Its validation metric. NaN and infinities rank after every finite one, in order of arrival.

        Raises:
            SearcherEventError: If the trial does not run, or has reached less than requested.
            InvalidArgumentError: If the metric is not a number, or the length not a whole number.
        """
        trial, length = whole_number("trial", trial), whole_number("length", length)
        loss = self._sign * _number("metric", metric)
        asked = self._trials.running(trial).asked
        if length < asked:
            raise SearcherEventError(
                f"trial {trial}: validated at length {length}; it was asked to reach {asked}, and is validated there"
            )
        self._trials.answer(trial, PAUSED, length)
        self._validated(trial, loss)
        return self._trials.take()

    def exited(self, trial: int, reason: str) -> list[Operation]:
        """Takes the end of a trial that has not reached its requested length.

        Args:
            trial: Its number.
            reason: `error` counts as the worst metric; a trial with `invalid_hyperparameters` is not counted.

        Raises:
            SearcherEventError: If the trial does not run.
            InvalidArgumentError: If the reason is unknown.
        """
        if reason not in (ERROR, INVALID):
            raise InvalidArgumentError(f"reason={shown(reason)} of trial {trial}: it must be {ERROR} or {INVALID}")
        trial = whole_number("trial", trial)
        self._trials.answer(trial, reason)
        if reason == ERROR:
            self._failed(trial)
        else:
            self._invalid(trial)
        return self._trials.take()

    def next_trial(self, waiting: Collection[int]) -> int:
        """Chooses the trial that gets the next free slot: the oldest of the bracket that has trained least.

        Each bracket should train for the same time. If fewer slots are free than operations wait, serving the oldest
        operation first would give most of the time to brackets with long rungs.

        Args:
            waiting: Trials whose operations are pending and have not been begun.

        Raises:
            SearcherEventError: If no operation of theirs is pending.
        """
        return self._trials.next_of(waiting)

    @property
    def states(self) -> dict[int, str]:
        """State of every trial.

        One of `running` (an operation waits for its answer), `paused`, `stopped`, `completed` (validated at the whole
        length), `error` and `invalid_hyperparameters`.
        """
        return {number: trial.state for number, trial in enumerate(self._trials.trials)}

    def hyperparameters(self, trial: int) -> dict[str, Any]:
        """The hyperparameters of a trial; a function of the seed and its number."""
        return self.definition.space.draw(self.definition.seed, trial)

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Whether no trial runs and none will be created."""

    @abstractmethod
    def _start(self) -> None: ...

    @abstractmethod
    def _validated(self, trial: int, loss: float) -> None:
        """Decides after a validation; a smaller loss is better."""

    @abstractmethod
    def _failed(self, trial: int) -> None: ...

    @abstractmethod
    def _invalid(self, trial: int) -> None: ...


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidArgumentError(f"{name}={shown(value)}: it must be a number")
    return float(value)
