"""The state of a running search: the searcher, its trials and the journal; every event goes through here.

An event is on disk before it takes effect. Threads of several slots call this; each call holds the lock `changed`.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

from ...errors import InvalidArgumentError
from ...training.trials.metrics import Goal
from ..journal import (
    COMPLETED,
    ENDED,
    FAILED,
    INVALID,
    PAUSED,
    RUNNING,
    STOPPED,
    WAITING,
    Event,
    Journal,
    Measurement,
    Trials,
    TrialState,
    is_divergence,
)
from ..searchers.base import Continue, Create, Operation, SearchMethod

Verdict = Literal["continue", "pause", "stop"]
# The searcher's names for the ends of trials.
_EXITS = {FAILED: "error", INVALID: "invalid_hyperparameters"}


class SearchState:
    """The searcher and its trials."""

    def __init__(self, searcher: SearchMethod, goal: Goal, journal: Journal) -> None:
        # Lock of the state; notified whenever a trial's state changes
        self.changed = threading.Condition(threading.RLock())
        self.searcher = searcher
        self._trials = Trials(goal)
        self._journal = journal

    # --- the beginning --------------------------------------------------------------------------------------------

    def start(self, about: Mapping[str, Any]) -> None:
        """Begins the search."""
        with self.changed:
            self._write([{"event": "started", **about}, *self._events_of(self.searcher.start())])

    def replay(self, events: Sequence[Event]) -> None:
        """Replays the events of a journal; trials that were running wait for slots, or end as was decided."""
        with self.changed:
            if not events or events[0]["event"] != "started":
                raise InvalidArgumentError("the journal does not begin with the event `started`")
            self.searcher.start()
            for event in events:
                kind, number = event["event"], event.get("trial")
                if kind == "validated" and event["decides"]:
                    self.searcher.validated(event["trial"], event["asked"], event["metric"])
                elif kind in _EXITS and self.searcher.states[event["trial"]] == RUNNING:
                    self.searcher.exited(event["trial"], _EXITS[kind])
                elif kind == "created":
                    self._require_same(event["hyperparameters"], self.searcher.hyperparameters(event["trial"]), number)
            self._trials.apply(events)
            decided = [
                {"event": state, "trial": number, "length": self.trials[number].length}
                for number, state in self.searcher.states.items()
                if self.trials[number].state == RUNNING and state in (PAUSED, STOPPED)
            ]
            self._write([{"event": "resumed"}, *decided])

    @staticmethod
    def _require_same(given: Mapping[str, Any], drawn: Mapping[str, Any], trial: int | None) -> None:
        # As text, because NaN is not equal to itself.
        if json.dumps(given, sort_keys=True) != json.dumps(drawn, sort_keys=True):
            raise InvalidArgumentError(
                f"trial {trial} has hyperparameters {drawn} and the journal has {given}; the journal is one of another "
                "experiment or version"
            )

    # --- what happens to trials -----------------------------------------------------------------------------------

    def next_trial(self, besides: Collection[int] = ()) -> TrialState | None:
        """Chooses the trial that gets the next free slots; None if none waits."""
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
        """Takes a validation and decides what the trial does next."""
        event = {"event": "validated", "trial": trial.number, **asdict(measured), "decides": False}
        with self.changed:
            # A trial resumed from an earlier checkpoint reaches lengths again that were already decided.
            decides = reached and self.searcher.states[trial.number] == RUNNING
            if not decides:
                if measured.length not in trial.curve:
                    self._write([event])
                return "continue"
            asked = trial.asked
            operations = self.searcher.validated(trial.number, asked, measured.metric)
            self._write([event | {"decides": True, "asked": asked}, *self._events_of(operations, besides=trial)])
            if any(isinstance(each, Continue) and each.trial == trial.number for each in operations):
                return "continue"
            return "stop" if self.searcher.states[trial.number] in (STOPPED, COMPLETED) else "pause"

    def ended_segment(self, trial: TrialState, length: float, *, by_itself: bool = False) -> None:
        """Takes the end of a segment of a trial, whose checkpoint is on disk; its slots are free."""
        with self.changed:
            if by_itself and trial.last is not None and self.searcher.states[trial.number] == RUNNING:
                self.validated(trial, trial.last, reached=True)
            state = self.searcher.states[trial.number]
            ended = state == STOPPED or (state == COMPLETED and (by_itself or length >= trial.length))
            # One that was paused by hand, or asked to continue while it wrote its checkpoint, waits for slots again.
            waits = not ended and state in (RUNNING, COMPLETED)
            kind = state if ended else PAUSED
            self._write([{"event": kind, "trial": trial.number, "length": length, "waits": waits}])

    def failed(self, trial: TrialState, error: str, *, invalid: bool = False) -> None:
        """Takes the failure of a trial; the searcher ranks it last, or draws others for invalid hyperparameters."""
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
        """Lets a failed trial wait for slots again, unless the searcher has paused or stopped it since."""
        # One that died between its last validation and its checkpoint trains that part again.
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
        """Ends the search."""
        with self.changed:
            self._write([{"event": "finished", **({} if best is None else {"best_trial": best.number})}])

    # --- queries --------------------------------------------------------------------------------------------------

    @property
    def trials(self) -> list[TrialState]:
        """The trials, in the order of their creation."""
        return self._trials.all

    @property
    def invalid_in_a_row(self) -> int:
        """Trials with invalid hyperparameters, replaced by others, since the last validated trial."""
        return self._trials.invalid_in_a_row if self.searcher.replaces_invalid else 0

    @property
    def finished(self) -> bool:
        """Whether no trial runs or waits, and the searcher will create none."""
        with self.changed:
            return (self._trials.given_up or self.searcher.finished) and not self.count(RUNNING, WAITING)

    def count(self, *states: str) -> int:
        """Counts the trials in these states."""
        with self.changed:
            return sum(trial.state in states for trial in self.trials)

    def counts(self) -> dict[str, int]:
        """Counts the trials by state."""
        with self.changed:
            return dict(sorted(Counter(trial.state for trial in self.trials).items()))

    def best(self, besides: Collection[int] = ()) -> TrialState | None:
        """Gives the best trial; see `Trials.best`."""
        with self.changed:
            return self._trials.best(besides)

    # --- events ---------------------------------------------------------------------------------------------------

    def _events_of(self, operations: Iterable[Operation], besides: TrialState | None = None) -> list[Event]:
        """Gives the events that follow from operations; for the trial `besides`, the end of its segment decides."""
        events: list[Event] = []
        for operation in operations:
            number = operation.trial
            if isinstance(operation, Create):
                given = {"hyperparameters": operation.hyperparameters, "length": operation.length}
                events.append({"event": "created", "trial": number, **given})
            elif isinstance(operation, Continue):
                events.append({"event": "continued", "trial": number, "length": operation.length})
            elif (besides is None or number != besides.number) and self.trials[number].state not in (*ENDED, RUNNING):
                length = self.trials[number].length
                events.append({"event": self.searcher.states[number], "trial": number, "length": length})
        return events

    def _write(self, events: list[Event]) -> None:
        now = time.time()
        stamped = [{"event": event["event"], "time": now, **event} for event in events]
        self._journal.append(stamped)
        self._trials.apply(stamped)
        self.changed.notify_all()
