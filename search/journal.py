"""The journal of a search, on disk before its events take effect, and the trials as its events leave them; pure.

An entry is a file that is written once, and holds events that take effect together. A killed search resumes from its
entries, because the searcher's answers depend on the events alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, InvalidArgumentError, NotFiniteError
from ..stores.write_once import partial_path, publish
from ..training.trials.metrics import Goal

JOURNAL_FOLDER = "journal"
_READ_AT_ONCE = 16

Event = dict[str, Any]


def journal_folder(root: Path, run_id: str) -> Path:
    """Gives the folder of a search's journal."""
    return root / run_id / JOURNAL_FOLDER


class Journal:
    """Adds entries; an error if another process has added to the journal meanwhile."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.entries = len(_entries(folder))

    def append(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Adds events, each with an `event` and a `time`, as one entry; once this returns they are on disk."""
        name = _name(self.entries)
        text = "".join(json.dumps(event) + "\n" for event in events)
        try:
            with partial_path(self._folder, name) as partial:
                partial.write_text(text, encoding="utf-8")
                added = publish(partial, self._folder / name)
        except OSError as error:
            raise CheckpointError(
                f"{self._folder / name} cannot be written ({error}); checkpoint_storage.path must be a writable "
                "folder. Resume the search when it is"
            ) from error
        if not added:
            raise InvalidArgumentError(
                f"{self._folder / name} was written by another process, which runs the search too; one process runs a "
                "search"
            )
        self.entries += 1


def read_events(folder: Path) -> list[Event]:
    """Reads the events of a journal."""
    entries = _entries(folder)
    if not entries:
        raise InvalidArgumentError(f"there is no journal in {folder}; is the run a search?")
    with ThreadPoolExecutor(_READ_AT_ONCE) as threads:
        return [event for events in threads.map(_read, entries) for event in events]


def _entries(folder: Path) -> list[Path]:
    """Lists the entries up to the last one, including missing ones."""
    last = max((int(path.stem) for path in folder.glob("*.jsonl") if path.stem.isdecimal()), default=-1)
    return [folder / _name(number) for number in range(last + 1)]


def _name(number: int) -> str:
    return f"{number:08d}.jsonl"


def _read(entry: Path) -> list[Event]:
    try:
        # Not splitlines(), which also breaks at characters that JSON may contain, such as U+2028.
        *lines, rest = entry.read_text(encoding="utf-8").split("\n")
        if rest or not lines:
            raise ValueError("its end is missing")
        events = [json.loads(line) for line in lines]
        for event in events:
            event["event"], event["time"]
    except (ValueError, KeyError, TypeError, FileNotFoundError) as error:
        raise InvalidArgumentError(f"{entry} is not an entry of a journal ({error}); put it back from a copy") from None
    return events


WAITING = "waiting"
RUNNING = "running"
PAUSED = "paused"
STOPPED = "stopped"
COMPLETED = "completed"
FAILED = "failed"
INVALID = "invalid"
ENDED = frozenset({STOPPED, COMPLETED, FAILED, INVALID})


@dataclass(frozen=True)
class Measurement:
    """A validation."""

    length: float  # Where it was, in the search's unit
    step: int  # Where it was, in steps
    epoch: int  # Epochs complete or begun there
    metric: float  # Value of the metric that decides
    metrics: Mapping[str, float]  # All values


@dataclass
class Span:
    """One stretch of time for which a trial held slots."""

    slots: tuple[int, ...]  # The slots
    start: float  # In seconds since the epoch
    end: float = math.inf  # In seconds since the epoch; infinite while the trial runs
    length: float = 0  # What the trial had reached by then
    failed: bool = False  # Whether it ended in a failure


@dataclass
class TrialState:
    """One trial."""

    number: int  # Its number, from 0 in the order of creation
    hyperparameters: dict[str, Any]  # Drawn for it
    asked: int  # The length that it was last asked to reach
    # `waiting` for slots, `running`, `paused`, or how it has ended: `stopped`, `completed`, `failed`, `invalid`
    state: str = WAITING
    curve: dict[float, Measurement] = field(default_factory=dict)  # Its validations, by length
    best: Measurement | None = None  # Its best validation; None before one that gave a number
    spans: list[Span] = field(default_factory=list)  # When it held slots
    run_id: str | None = None  # Its MLflow run, once it has been launched
    restarts: int = 0  # How often it was started again after a failure
    error: str | None = None  # Why it failed
    was_in_flight: bool = False  # Whether it held slots when the search was killed; then it gets slots before others
    diverged: bool = False  # Whether its loss or output was not finite, so that it is never the best

    @property
    def length(self) -> float:
        """The length of its last validation; 0 before one."""
        return max(self.curve, default=0)

    @property
    def last(self) -> Measurement | None:
        """Its last validation."""
        return self.curve.get(self.length)

    @property
    def can_be_best(self) -> bool:
        """Whether it may be the best trial: one that measured well and then diverged may not."""
        return self.best is not None and self.state != INVALID and not self.diverged


class Trials:
    """The trials of a search, in the order of their creation."""

    def __init__(self, goal: Goal) -> None:
        self.all: list[TrialState] = []
        self.given_up = False  # Whether the search was ended before it was finished
        self.invalid_in_a_row = 0  # Trials with invalid hyperparameters since the last validated trial
        self._goal = goal
        self._time = 0.0

    def best(self, besides: Collection[int] = ()) -> TrialState | None:
        """Gives the trial with the best validation, of equal ones the first, but no invalid or diverged one."""
        best: TrialState | None = None
        for trial in self.all:
            known = best.best.metric if best is not None and best.best is not None else None
            if trial.number in besides or not trial.can_be_best or trial.best is None:
                continue
            if self._goal.is_better(trial.best.metric, known):
                best = trial
        return best

    def apply(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Takes events, in their order; each has a `time`, and most have a `trial`."""
        for event in events:
            if "trial" in event:
                self._apply_to_trial(event)
            else:  # the search begins, is resumed, given up or finished: what held slots had lost them before
                self.given_up = self.given_up or event["event"] == "given_up"
                for trial in self.all:
                    if trial.state == RUNNING:
                        self._leave(trial, WAITING)
                        trial.was_in_flight = True
            self._time = event["time"]

    def close(self) -> None:
        """Ends the spans of running trials at the last event, as the report of a running search shows them."""
        for trial in self.all:
            for span in trial.spans:
                span.end = min(span.end, self._time)

    def _apply_to_trial(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if kind == "created":
            self.all.append(TrialState(event["trial"], event["hyperparameters"], event["length"]))
            return
        trial = self.all[event["trial"]]
        if kind == "launched":
            trial.state, trial.run_id, trial.was_in_flight = RUNNING, event["run_id"], False
            trial.spans.append(Span(tuple(event["slots"]), event["time"]))
        elif kind == "validated":
            self._validate(trial, event)
        elif kind == "continued":
            trial.asked = event["length"]
            trial.state = WAITING if trial.state == PAUSED else trial.state
        else:
            self._time = event["time"]
            trial.error = event.get("error")
            trial.diverged = trial.diverged or is_divergence(trial.error)
            trial.restarts += kind == "restarted"
            self.invalid_in_a_row += kind == INVALID
            waits = kind == "restarted" or event.get("waits", False)
            self._leave(trial, WAITING if waits else kind, failed=kind in ("restarted", FAILED))

    def _validate(self, trial: TrialState, event: Mapping[str, Any]) -> None:
        length, metric = event["length"], event["metric"]
        trial.curve[length] = Measurement(length, event["step"], event["epoch"], metric, event["metrics"])
        if trial.state == RUNNING:
            trial.spans[-1].length = length
        if self._goal.is_better(metric, trial.best.metric if trial.best is not None else None):
            trial.best = trial.curve[length]
        self.invalid_in_a_row = 0

    def _leave(self, trial: TrialState, state: str, *, failed: bool = False) -> None:
        if trial.state == RUNNING:
            trial.spans[-1].end, trial.spans[-1].failed = self._time, failed
        trial.state, trial.was_in_flight = state, False


def is_divergence(error: str | None) -> bool:
    """Returns whether the error of a trial, as the journal holds it, is that its loss or output was not finite."""
    return error is not None and error.startswith(f"{NotFiniteError.__name__}:")
