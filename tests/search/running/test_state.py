"""Rules of a running search's state: what is journaled, and that a killed search goes on as if it had not been."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest

from lakelens.errors import InvalidArgumentError
from lakelens.search import create_searcher
from lakelens.search.journal import ENDED, RUNNING, WAITING, Journal, Measurement, TrialState, read_events
from lakelens.search.running.state import SearchState
from lakelens.training.trials.metrics import Goal

pytestmark = pytest.mark.unit

SEARCHER = {
    "name": "adaptive_asha",
    "metric": "val_loss",
    "max_length": {"epochs": 9},
    "max_trials": 9,
    "max_concurrent_trials": 4,
    "divisor": 3,
    "mode": "conservative",
}
SPACE = {"x": {"type": "double", "minval": 0.0, "maxval": 1.0}}
GOAL = Goal("val_loss", "min")


class Lines:
    """A journal in memory."""

    def __init__(self, entries=()) -> None:
        self.entries: list[list[dict[str, Any]]] = list(entries)

    @property
    def events(self) -> list[dict[str, Any]]:
        return list(itertools.chain(*self.entries))

    def append(self, events) -> None:
        self.entries.append([json.loads(json.dumps(event)) for event in events])


class OneSlot:
    """Trains on one slot, after whose death the process begins anew; checkpoints are at pauses.

    The metric of a trial is known beforehand; trial 2 fails in its second epoch, trial 4 diverges and trial 5 has
    invalid hyperparameters.
    """

    def __init__(self, searcher=SEARCHER, saved: dict[int, int] | None = None) -> None:
        self.searcher = create_searcher(searcher, SPACE, seed=3)
        self.saved = saved if saved is not None else {}

    def search(self, lines: Lines) -> SearchState:
        state = SearchState(self.searcher, GOAL, lines)
        if lines.events:
            state.replay(lines.events)
        else:
            state.start({"seed": 3, "unit": "epochs", "config": {}})
        while (trial := state.next_trial()) is not None:
            self.segment(state, trial)
        assert state.finished
        return state

    def segment(self, state: SearchState, trial: TrialState) -> None:
        length = self.saved.get(trial.number, 0)
        state.launch(trial, (0,), f"run-{trial.number}", length)
        while True:
            if trial.number == 5:
                return state.failed(trial, "no such model", invalid=True)
            length += 1
            if trial.number == 2 and length == 2:
                return state.failed(trial, "ValueError: no")
            value = math.nan if trial.number == 4 else trial.hyperparameters["x"] + 1 / length
            measured = Measurement(length, length * 10, length, value, {"val_loss": value})
            verdict = state.validated(trial, measured, reached=length >= trial.asked)
            if verdict != "continue" or length == 9:
                self.saved[trial.number] = length
                return state.ended_segment(trial, length)


def summary(state: SearchState) -> list[tuple[Any, ...]]:
    return [
        (trial.number, trial.hyperparameters["x"], trial.state, trial.length, trial.best and trial.best.metric)
        for trial in state.trials
    ]


@pytest.mark.parametrize("stop_once", [False, True])
def test_a_search_killed_after_any_entry_goes_on_with_the_same_trials_and_promotions(stop_once):
    section = {**SEARCHER, "stop_once": stop_once}
    whole = Lines()
    expected = summary(OneSlot(section).search(whole))
    assert {row[2] for row in expected} >= {"stopped", "completed", "failed", "invalid"}
    kinds = {event["event"] for event in whole.events}
    assert kinds >= {"started", "created", "launched", "validated", "stopped", "completed", "failed", "invalid"}
    assert ("paused" in kinds and "continued" in kinds) != stop_once
    for count in range(1, len(whole.entries)):
        events = list(itertools.chain(*whole.entries[:count]))
        # A checkpoint is on disk before the segment's end is journaled; none other is counted on.
        saved = {event["trial"]: event["length"] for event in events if event["event"] == "paused"}
        lines = Lines(whole.entries[:count])
        state = OneSlot(section, saved).search(lines)
        assert summary(state) == expected, f"killed after {events[-1]}"
        decided = [decision(event) for event in lines.events if event.get("decides")]
        assert decided == [decision(event) for event in whole.events if event.get("decides")]
        created = [event["trial"] for event in lines.events if event["event"] == "created"]
        assert created == [event["trial"] for event in whole.events if event["event"] == "created"]


def decision(event: dict[str, Any]) -> tuple[int, int, str]:
    return event["trial"], event["asked"], str(event["metric"])


def made(lines: Lines | None = None, space: Any = SPACE, seed: int = 3, **searcher: Any) -> SearchState:
    """A search; with a `name` its searcher is the one that is given, else ours with these keys."""
    section = searcher if "name" in searcher else {**SEARCHER, **searcher}
    return SearchState(create_searcher(section, space, seed), GOAL, Lines() if lines is None else lines)


def begun(*given: Any, **keys: Any) -> SearchState:
    """A search that has started."""
    state = made(*given, **keys)
    state.start({})
    return state


def replayed(lines: Lines, **keys: Any) -> SearchState:
    """The search of a journal, as another process reads it."""
    state = made(lines, **keys)
    state.replay(lines.events)
    return state


def measured(length: float, value: float) -> Measurement:
    return Measurement(length, 10 * length, length, value, {"val_loss": value})


def test_an_event_that_cannot_be_written_takes_no_effect_on_the_trial():
    class Full(Lines):
        def append(self, events) -> None:
            if any(event["event"] == "launched" for event in self.events):
                raise OSError("the disk is full")
            super().append(events)

    state = begun(Full())
    first, *_ = state.trials
    state.launch(first, (0,), "run", 0)
    with pytest.raises(OSError, match="the disk is full"):
        state.validated(first, measured(1, 1.0), reached=False)
    assert (first.state, first.length, first.best) == (RUNNING, 0, None)


@pytest.mark.parametrize(
    ("length", "by_itself", "found"), [(2, True, "completed"), (2, False, WAITING)], ids=["stopped itself", "by hand"]
)
def test_a_trial_that_stops_itself_has_come_to_its_length_and_one_that_is_paused_by_hand_waits(
    length, by_itself, found
):
    state = begun(bracket_rungs=[1])
    trial = state.trials[0]
    state.launch(trial, (0,), "run", 0)
    assert state.validated(trial, measured(length, 0.5), reached=False) == "continue"
    state.ended_segment(trial, length, by_itself=by_itself)
    assert (trial.state, trial.length, trial.best) == (found, length, measured(length, 0.5))


def decided_trial(lines: Lines | None = None, **searcher: Any) -> tuple[SearchState, TrialState]:
    """A search of one bracket, whose first trial is killed after its deciding validation and before its checkpoint."""
    state = begun(lines, **{**SHORT, **searcher})
    trial = state.trials[0]
    state.launch(trial, (0,), "run", 0)
    state.validated(trial, measured(trial.asked, 0.5), reached=True)
    return state, trial


SHORT = {"max_length": {"epochs": 3}, "max_concurrent_trials": 1}
PAUSED_THERE = {"bracket_rungs": [2], "max_trials": 6, "max_concurrent_trials": 2}
COMPLETED_THERE = {"bracket_rungs": [1], "max_trials": 2}
NOT_FINITE = "NotFiniteError: loss is nan"


@pytest.mark.parametrize(("end", "is_best"), [("restart", True), ("failed", True), ("diverged", False)])
def test_a_trial_that_ends_after_its_rung_has_paused_it_stays_paused_and_the_search_goes_on(end, is_best):
    state, trial = decided_trial(**PAUSED_THERE)
    error = NOT_FINITE if end == "diverged" else "SIGKILL"
    (state.restart if end == "restart" else state.failed)(trial, error)
    assert (trial.state, trial.error, state.best() is trial) == ("paused", error, is_best)
    state.launch(other := state.next_trial(), (0,), "other", 0)
    assert other is not trial
    assert state.next_trial() is not trial
    state.give_up()
    assert (trial.state, state.best() is trial) == ("stopped", is_best)


@pytest.mark.parametrize("how", ["restarted", "resumed"])
def test_a_completed_trial_without_the_checkpoint_of_its_end_trains_its_last_part_again_without_a_second_verdict(how):
    lines = Lines()
    state, trial = decided_trial(lines, **COMPLETED_THERE)
    if how == "restarted":
        state.restart(trial, "SIGKILL")
    else:
        state = replayed(lines, **SHORT, **COMPLETED_THERE)
        trial = state.trials[0]
    for length in (2.5, 3):  # paused by hand on the way
        assert state.next_trial() is trial
        assert not state.finished
        state.launch(trial, (0,), "run", 0)
        if length == 3:
            assert state.validated(trial, measured(3, 0.5), reached=True) == "continue"
        state.ended_segment(trial, length)
    assert trial.state == "completed"
    assert sum(event.get("decides", False) for event in lines.events) == 1
    assert state.next_trial() is state.trials[1]


def test_a_completed_trial_that_stops_itself_before_its_end_in_its_second_try_has_ended():
    state, trial = decided_trial(**COMPLETED_THERE)
    state.restart(trial, "SIGKILL")
    state.launch(trial, (0,), "run", 0)
    state.ended_segment(trial, 2, by_itself=True)
    assert trial.state == "completed"


@pytest.mark.parametrize("reached", [False, True])
def test_a_trial_that_is_invalid_or_diverges_after_a_good_validation_is_never_the_best(reached):
    section = {"name": "random", "metric": "val_loss", "max_length": {"epochs": 2}, "max_trials": 4}
    lines = Lines()
    state = begun(lines, **section)
    errors = {0: "no such model", 1: NOT_FINITE, 2: "ValueError: no", 3: None}
    for trial in list(state.trials):
        state.launch(trial, (0,), "run", 0)
        # The searcher has completed a trial that was validated at its whole length.
        length = 2 if reached and trial.number == 1 else 1
        state.validated(trial, measured(length, 0.1 * (trial.number + 1)), reached=length == 2)
        if errors[trial.number] is not None:
            state.failed(trial, errors[trial.number], invalid=trial.number == 0)
    for found, last in ((state, "running"), (replayed(lines, **section), "waiting")):
        assert [trial.state for trial in found.trials[:4]] == ["invalid", "failed", "failed", last]
        # An error of another kind leaves the model of the good validation.
        assert found.best() is found.trials[2]
        assert found.searcher.states == state.searcher.states


@pytest.mark.parametrize(("name", "counted"), [("random", 3), ("grid", 0)])
def test_invalid_trials_are_counted_in_a_row_where_others_are_drawn_for_them(name, counted):
    section = {"name": name, "metric": "val_loss", "max_length": {"epochs": 1}}
    section |= {"max_trials": 5} if name == "random" else {}
    state = begun(space={"x": {"type": "int", "minval": 0, "maxval": 4, "count": 5}}, **section)
    for _ in range(3):
        state.launch(trial := state.next_trial(), (0,), "run", 0)
        state.failed(trial, "no such model", invalid=True)
    assert state.invalid_in_a_row == counted


def test_a_search_that_is_given_up_stays_so_after_a_kill():
    lines = Lines()
    begun(lines).give_up()
    again = replayed(lines)
    assert again.finished
    assert {trial.state for trial in again.trials} == {"stopped"}
    assert again.count(*ENDED) == len(again.trials)


def test_a_journal_of_other_hyperparameters_is_refused():
    lines = Lines()
    begun(lines)
    with pytest.raises(InvalidArgumentError, match=r"trial 0 has hyperparameters .* and the journal has"):
        replayed(lines, seed=4)


def test_a_journal_with_hyperparameters_that_json_lacks_is_gone_on_with(tmp_path):
    section = {"name": "random", "metric": "val_loss", "max_length": {"epochs": 2}, "max_trials": 2}
    space = {"clip": math.inf, "scales": [1, math.nan], "name": "\u2028"}
    for begin in (lambda state: state.start({}), lambda state: state.replay(read_events(tmp_path))):
        state = made(Journal(tmp_path), space, **section)
        begin(state)
        assert state.trials[0].hyperparameters["clip"] == math.inf
