"""What all searchers share: events in, operations out, and the trials with the operations that wait for an answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from numbers import Real
from typing import Any

from ...errors import InvalidArgumentError, SearcherEventError
from ...options import whole_number
from ...training.configuration.rules import shown
from ...training.configuration.space import Space
from ..settings import SearcherSettings, read_sections


@dataclass(frozen=True)
class Create:
    """Start a trial and train it until it has reached a length; answered by `validated` or `exited`.

    Attributes:
        trial: Its number, from 0 in the order of creation.
        hyperparameters: Values by name, nested as in the configuration.
        length: Length to reach, in the searcher's unit.
    """

    trial: int
    hyperparameters: dict[str, Any]
    length: int


@dataclass(frozen=True)
class Continue:
    """Train a trial on until it has reached a length; answered by `validated` or `exited`.

    Attributes:
        trial: Its number. It may have been paused since its last validation.
        length: Length to reach, counted from the trial's beginning, in the searcher's unit.
    """

    trial: int
    length: int


@dataclass(frozen=True)
class Stop:
    """Stop a trial permanently: it will never be continued. Needs no answer.

    Attributes:
        trial: Its number.
    """

    trial: int


Operation = Create | Continue | Stop


RUNNING = "running"
PAUSED = "paused"
STOPPED = "stopped"
COMPLETED = "completed"
ERROR = "error"
INVALID = "invalid_hyperparameters"


@dataclass
class TrialRecord:
    """One trial."""

    bracket: int  # Which bracket of the search it belongs to
    state: str  # `running` while an operation waits for its answer, else how it ended
    reached: int  # Length at its last validation
    asked: int  # Length that it was last asked to reach

    @property
    def failed(self) -> bool:
        """Whether it ended with an error."""
        return self.state == ERROR


class TrialBook:
    """Numbers trials in the order of their creation and records which of them run."""

    def __init__(self, hyperparameters: Callable[[int], dict[str, Any]], max_length: int) -> None:
        self.trials: list[TrialRecord] = []
        self._hyperparameters = hyperparameters
        self._max_length = max_length
        self._running: dict[int, None] = {}  # in the order in which they were asked
        self._trained: Counter[int] = Counter()  # by bracket, up to the last validations
        self._issued: list[Operation] = []

    def create(self, bracket: int, length: int) -> int:
        """Asks for a new trial and returns its number."""
        number = len(self.trials)
        self.trials.append(TrialRecord(bracket, RUNNING, 0, length))
        self._ask(number)
        return number

    def proceed(self, trial: int, length: int) -> None:
        """Asks to continue a trial."""
        self.trials[trial].state = RUNNING
        self.trials[trial].asked = length
        self._ask(trial)

    def stop(self, trial: int) -> None:
        """Stops a trial."""
        found = self.trials[trial]
        if found.state == PAUSED:
            found.state = COMPLETED if found.reached >= self._max_length else STOPPED
        self._issued.append(Stop(trial))

    def running(self, trial: int) -> TrialRecord:
        """Finds a trial whose operation waits for an answer."""
        if trial not in self._running:
            exists = isinstance(trial, int) and 0 <= trial < len(self.trials)
            what = f"it is {self.trials[trial].state}" if exists else f"{len(self.trials)} trials have been created"
            raise SearcherEventError(f"trial {trial}: no operation waits for its answer; {what}")
        return self.trials[trial]

    def answer(self, trial: int, state: str, reached: int | None = None) -> TrialRecord:
        """Notes that a running trial has reached a length, or ended."""
        found = self.running(trial)
        del self._running[trial]
        found.state = state
        if reached is not None:
            self._trained[found.bracket] += reached - found.reached
            found.reached = reached
        return found

    def next_of(self, waiting: Collection[int]) -> int:
        """Of the trials that wait for a slot, the oldest of the bracket that has trained least."""
        trained = self._trained.copy()
        for number in self._running:
            if number not in waiting:
                trial = self.trials[number]
                trained[trial.bracket] += trial.asked - trial.reached
        candidates = [number for number in self._running if number in waiting]
        if not candidates:
            raise SearcherEventError(f"no operation of the trials {sorted(waiting)} waits for its answer")
        return min(candidates, key=lambda number: trained[self.trials[number].bracket])

    def take(self) -> list[Operation]:
        """Returns the operations since the last call."""
        issued, self._issued = self._issued, []
        return issued

    def _ask(self, number: int) -> None:
        trial = self.trials[number]
        self._running[number] = None
        if trial.reached:
            self._issued.append(Continue(number, trial.asked))
        else:
            self._issued.append(Create(number, self._hyperparameters(number), trial.asked))


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
