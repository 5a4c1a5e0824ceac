"""The trials of a search: their numbers, their states, and the operations that wait for an answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from ...errors import SearcherEventError
from ..operations import Continue, Create, Operation, Stop

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
