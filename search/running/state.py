"""The state of a running search: the searcher, its trials and the journal; every event goes through here.

An event is on disk before it takes effect. Threads of several slots call this; each call holds the lock `changed`.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

from ...errors import InvalidArgumentError
from ...training.trials.metrics import Goal
from ..operations import Continue, Create, Operation
from ..searchers.base import SearchMethod
from .trial_state import (
    COMPLETED,
    ENDED,
    FAILED,
    INVALID,
    PAUSED,
    RUNNING,
    STOPPED,
    WAITING,
    Measurement,
    TrialState,
    is_divergence,
)

Verdict = Literal["continue", "pause", "stop"]
Event = dict[str, Any]
# The searcher's names for the ends of trials.
_EXITS = {FAILED: "error", INVALID: "invalid_hyperparameters"}


class Writer(Protocol):
    """Where events are written: a journal."""

    def append(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Adds events; once this returns they are on disk."""


class SearchState:
    """The searcher and its trials.

    Args:
        searcher: A searcher that has not started.
        goal: The metric that decides.
        journal: Takes every event.

    Attributes:
        changed: Lock of the state; notified whenever a trial's state changes.
        trials: By number.
        invalid_in_a_row: Trials with invalid hyperparameters, replaced by others, since the last validated trial.
    """

    def __init__(self, searcher: SearchMethod, goal: Goal, journal: Writer) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.searcher = searcher
        self.trials: list[TrialState] = []
        self.invalid_in_a_row = 0
        self._goal = goal
        self._journal = journal
        self._given_up = False

    # --- the beginning --------------------------------------------------------------------------------------------

    def start(self, about: Mapping[str, Any]) -> None:
        """Begins the search.

        Args:
            about: Its description in the journal: config, seed, unit.
        """
        with self.changed:
            self._write([{"event": "started", **about}, *self._events_of(self.searcher.start())])

    def replay(self, events: Sequence[Event]) -> None:
        """Replays the events of a journal, and writes those that should have followed and were not written.

        Raises:
            InvalidArgumentError: If the events belong to another search.
        """
        with self.changed:
            if not events or events[0]["event"] != "started":
                raise InvalidArgumentError("the journal does not begin with the event `started`")
            self._take_created(self.searcher.start())
            for event in events[1:]:
                self._replay(event)
            created = [event for event in events if event["event"] == "created"]
            for event, trial in zip(created, self.trials, strict=False):
                if json.dumps(event["hyperparameters"], sort_keys=True) != json.dumps(
                    trial.hyperparameters, sort_keys=True
                ):
                    raise InvalidArgumentError(
                        f"trial {trial.number} has hyperparameters {trial.hyperparameters} and the journal has "
                        f"{event['hyperparameters']}; the journal is one of another experiment or version"
                    )
            self._complete(events)

    def _replay(self, event: Event) -> None:
        kind = event["event"]
        if kind == "validated":
            self._apply(event)
            if event["decides"]:
                operations = self.searcher.validated(event["trial"], event["asked"], float(event["metric"]))
                self._take_created(operations)
        elif kind in _EXITS:
            self._apply(event)
            if self.searcher.states[event["trial"]] == RUNNING:
                self._take_created(self.searcher.exited(event["trial"], _EXITS[kind]))
        elif kind != "created":
            self._apply(event)

    def _complete(self, events: Sequence[Event]) -> None:
        """Writes the events that a kill has cut off after the events they follow from; no trial runs now."""
        created = sum(event["event"] == "created" for event in events)
        continued = {(event["trial"], event["length"]) for event in events if event["event"] == "continued"}
        missing: list[Event] = [_created(trial) for trial in self.trials[created:]]
        for operation in [] if self._given_up else self.searcher.pending:
            trial = self.trials[operation.trial]
            trial.asked = operation.length
            if isinstance(operation, Continue) and (trial.number, operation.length) not in continued:
                missing.append({"event": "continued", "trial": trial.number, "length": operation.length})
        for number, state in self.searcher.states.items():
            trial = self.trials[number]
            if trial.state in ENDED:
                continue
            if self._given_up or state == STOPPED or (state == COMPLETED and trial.state == PAUSED):
                state = COMPLETED if state == COMPLETED else STOPPED
                missing.append({"event": state, "trial": number, "length": trial.length})
            else:
                trial.was_in_flight = trial.state == RUNNING and state != PAUSED
                trial.state, trial.slots = (PAUSED if state == PAUSED else WAITING), ()
        self._write([{"event": "resumed"}, *missing])

    # --- what happens to trials -----------------------------------------------------------------------------------

    def next_trial(self, besides: Collection[int] = ()) -> TrialState | None:
        """Chooses the trial that gets the next free slots; None if none waits.

        Args:
            besides: Trials that have been chosen and not launched yet.
        """
        with self.changed:
            waiting = [trial.number for trial in self.trials if trial.state == WAITING and trial.number not in besides]
            states = self.searcher.states
            for number in waiting:
                # A completed trial that waits lacks its final checkpoint; the searcher needs nothing more from it.
                if self.trials[number].was_in_flight or states[number] == COMPLETED:
                    return self.trials[number]
            return self.trials[self.searcher.next_trial(waiting)] if waiting else None

    def launch(self, trial: TrialState, slots: Sequence[int], run_id: str | None, from_length: float) -> None:
        """Gives a trial its slots; it has no run yet if it could not be opened."""
        launched = {"event": "launched", "trial": trial.number, "slots": list(slots), "from_length": from_length}
        with self.changed:
            self._write([launched | {"run_id": run_id}])

    def validated(self, trial: TrialState, measured: Measurement, *, reached: bool) -> Verdict:
        """Takes a validation and decides what the trial does next.

        Args:
            trial: The trial.
            measured: The validation.
            reached: Whether the trial has reached the requested length.
        """
        event = {
            "event": "validated",
            "trial": trial.number,
            "length": measured.length,
            "step": measured.step,
            "epoch": measured.epoch,
            "metric": measured.metric,
            "metrics": dict(measured.metrics),
            "decides": False,
        }
        with self.changed:
            # A trial resumed from an earlier checkpoint reaches lengths again that were already decided.
            decides = reached and self.searcher.states[trial.number] == RUNNING
            if not decides:
                if measured.length not in trial.validated_at:
                    self._write([event])
                return "continue"
            asked = trial.asked
            operations = self.searcher.validated(trial.number, asked, measured.metric)
            self._write([event | {"decides": True, "asked": asked}, *self._events_of(operations, besides=trial)])
            if any(isinstance(each, Continue) and each.trial == trial.number for each in operations):
                return "continue"
            return "stop" if self.searcher.states[trial.number] in (STOPPED, COMPLETED) else "pause"

    def ended_segment(self, trial: TrialState, length: float, *, by_itself: bool = False) -> None:
        """Takes the end of a segment of a trial, whose checkpoint is on disk; its slots are free.

        Args:
            trial: The trial.
            length: The length it has reached. A completed trial that has not reached its end again continues.
            by_itself: Whether the trial has stopped itself; then it counts as having reached the requested length.
        """
        with self.changed:
            if by_itself and trial.last is not None and self.searcher.states[trial.number] == RUNNING:
                self.validated(trial, trial.last, reached=True)
            state = self.searcher.states[trial.number]
            ended = state == STOPPED or (state == COMPLETED and (by_itself or length >= trial.length))
            self._write([{"event": state if ended else PAUSED, "trial": trial.number, "length": length}])

    def failed(self, trial: TrialState, error: str, *, invalid: bool = False) -> None:
        """Takes the failure of a trial; the searcher ranks it last, or draws others for invalid hyperparameters.

        Args:
            trial: The trial.
            error: Class and message of the error.
            invalid: Whether its hyperparameters are invalid.
        """
        with self.changed:
            state = self.searcher.states[trial.number]
            if state != RUNNING:
                # It had reached its length: that decision stays, and it can continue from an earlier checkpoint.
                # A trial that ended and diverged gets no more events from the searcher.
                ended = FAILED if is_divergence(error) and state != PAUSED else state
                self._write([{"event": ended, "trial": trial.number, "length": trial.length, "error": error}])
                return
            kind = INVALID if invalid else FAILED
            event = {"event": kind, "trial": trial.number, "length": trial.length, "error": error}
            operations = self.searcher.exited(trial.number, _EXITS[kind])
            self._write([event, *self._events_of(operations)])

    def restart(self, trial: TrialState, error: str) -> None:
        """Lets a trial that has failed wait for slots again, unless the searcher has paused or stopped it since.

        One that died between its last validation and its checkpoint trains that part again.
        """
        with self.changed:
            if self.searcher.states[trial.number] not in (RUNNING, COMPLETED):
                self.failed(trial, error)
                return
            restarted = {"event": "restarted", "trial": trial.number, "length": trial.length, "error": error}
            self._write([restarted])

    def give_up(self) -> None:
        """Gives up every trial that has not ended; none may run."""
        with self.changed:
            left = [trial for trial in self.trials if trial.state not in ENDED]
            stopped = [{"event": STOPPED, "trial": trial.number, "length": trial.length} for trial in left]
            self._write([{"event": "given_up"}, *stopped])

    def finish(self, best: TrialState | None) -> None:
        """Ends the search.

        Args:
            best: The trial that represents its result.
        """
        with self.changed:
            self._write([{"event": "finished", **({} if best is None else {"best_trial": best.number})}])

    # --- queries --------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether no trial runs or waits, and the searcher will create none."""
        with self.changed:
            return (self._given_up or self.searcher.finished) and not self.count(RUNNING, WAITING)

    def count(self, *states: str) -> int:
        """Counts the trials in these states."""
        with self.changed:
            return sum(trial.state in states for trial in self.trials)

    def counts(self) -> dict[str, int]:
        """Counts the trials by state."""
        with self.changed:
            return dict(sorted(Counter(trial.state for trial in self.trials).items()))

    def best(self, besides: Collection[int] = ()) -> TrialState | None:
        """Gives the trial with the best validation; of equal ones the first.

        Invalid trials and those whose loss or output was not finite are left out.

        Args:
            besides: Trials to leave out too.
        """
        with self.changed:
            best: TrialState | None = None
            for trial in self.trials:
                known = best.best if best is not None else None
                if not trial.can_be_best or trial.number in besides or trial.best is None:
                    continue
                if self._goal.is_better(trial.best.metric, known.metric if known is not None else None):
                    best = trial
            return best

    # --- events ---------------------------------------------------------------------------------------------------

    def _events_of(self, operations: Iterable[Operation], besides: TrialState | None = None) -> list[Event]:
        """Gives the events that follow from operations; for the trial `besides`, the end of its segment decides."""
        self._take_created(operations := list(operations))
        events: list[Event] = []
        for operation in operations:
            if isinstance(operation, Create):
                events.append(_created(self.trials[operation.trial]))
            elif isinstance(operation, Continue):
                events.append({"event": "continued", "trial": operation.trial, "length": operation.length})
            elif operation.trial != (besides.number if besides is not None else None):
                trial = self.trials[operation.trial]
                state = self.searcher.states[operation.trial]
                if trial.state not in (*ENDED, RUNNING):
                    events.append({"event": state, "trial": operation.trial, "length": trial.length})
        return events

    def _take_created(self, operations: Iterable[Operation]) -> None:
        for operation in operations:
            if isinstance(operation, Create):
                self.trials.append(TrialState(operation.trial, operation.hyperparameters, operation.length))

    def _write(self, events: list[Event]) -> None:
        if not events:
            return
        self._journal.append(events)
        for event in events:
            self._apply(event)
        self.changed.notify_all()

    def _apply(self, event: Event) -> None:
        self._given_up = self._given_up or event["event"] == "given_up"
        handle: Callable[[TrialState, Event], None] | None = getattr(self, f"_on_{event['event']}", None)
        if handle is not None:
            handle(self.trials[event["trial"]], event)
        elif event["event"] in (PAUSED, *ENDED):
            trial = self.trials[event["trial"]]
            trial.state, trial.slots = event["event"], ()
            trial.error = event.get("error")
            trial.diverged = trial.diverged or is_divergence(trial.error)
            self.invalid_in_a_row += event["event"] == INVALID and self.searcher.replaces_invalid
            # It may have been asked to continue while it wrote its checkpoint.
            if trial.state == PAUSED and self.searcher.states[trial.number] in (RUNNING, COMPLETED):
                trial.state = WAITING

    def _on_launched(self, trial: TrialState, event: Event) -> None:
        trial.state, trial.slots, trial.run_id = RUNNING, tuple(event["slots"]), event["run_id"]
        trial.was_in_flight = False

    def _on_restarted(self, trial: TrialState, event: Event) -> None:
        trial.state, trial.slots = WAITING, ()
        trial.restarts += 1

    def _on_continued(self, trial: TrialState, event: Event) -> None:
        trial.asked = event["length"]
        if trial.state == PAUSED:
            trial.state = WAITING

    def _on_validated(self, trial: TrialState, event: Event) -> None:
        metrics = {name: float(value) for name, value in event["metrics"].items()}
        measured = Measurement(event["length"], event["step"], event["epoch"], float(event["metric"]), metrics)
        trial.length, trial.last = event["length"], measured
        trial.validated_at.add(event["length"])
        if self._goal.is_better(measured.metric, trial.best.metric if trial.best is not None else None):
            trial.best = measured
        self.invalid_in_a_row = 0


def _created(trial: TrialState) -> Event:
    return {
        "event": "created",
        "trial": trial.number,
        "hyperparameters": trial.hyperparameters,
        "length": trial.asked,
    }
