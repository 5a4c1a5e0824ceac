"""`adaptive_asha` with `stop_once`: a trial goes on at once or never."""

from __future__ import annotations

import math

import pytest
from driving import Run, make, one_bracket
from hypothesis import given
from hypothesis import strategies as st

from lakelens.search import Continue, Stop

pytestmark = pytest.mark.unit


def stopping(rungs=3, **keys):
    return Run(one_bracket(rungs, stop_once=True, **keys))


@pytest.mark.parametrize("concurrent", [0, 1, 3, 9, 16])
@pytest.mark.parametrize("smaller_is_better", [True, False])
def test_rising_losses_lowest_trial_first(concurrent, smaller_is_better):
    keys = {"max_length": {"batches": 9000}, "max_concurrent_trials": concurrent}
    run = stopping(smaller_is_better=smaller_is_better, **keys)
    sign = 1 if smaller_is_better else -1
    assert run.finish(lambda trial: sign * 0.01 * (trial + 1)) == [9000, *[1000] * 11]
    assert sorted(run.stopped) == list(range(12))


def test_rungs_of_one_length_are_passed_at_once():
    run = Run(make("adaptive_asha", stop_once=True, bracket_rungs=[4], max_trials=9, max_length={"epochs": 3}))
    assert run.pending[0] == 1
    assert run.report(0, 0.5) == [Continue(0, 3)]
    assert run.report(0, 0.5) == [Stop(0)]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("smaller_is_better", [True, False])
def test_a_better_metric_goes_on_after_one_that_is_not_finite(bad, smaller_is_better):
    # With NaN among the numbers of a binary search, 0.3 would come last here, and its trial would be stopped.
    run = stopping(max_concurrent_trials=4, smaller_is_better=smaller_is_better)
    sign = 1 if smaller_is_better else -1
    assert run.report(0, sign * 0.5) == [Continue(0, 3)]
    assert run.report(1, bad)[0] == Stop(1)
    assert run.report(2, sign * 0.3) == [Continue(2, 3)]
    assert run.report(3, bad)[0] == Stop(3)


class ByTheBook:
    """The rules of the stopping variant over plain lists."""

    def __init__(self, lengths, divisor, max_trials, concurrent):
        self.lengths, self.divisor, self.max_trials = lengths, divisor, max_trials
        self.metrics = [[] for _ in lengths]  # [metric, trial], best first
        self.rung, self.invalid = {}, 0
        self.first = [self.create() for _ in range(min(concurrent, max_trials))]

    def create(self):
        self.rung[len(self.rung)] = 0
        return ("create", len(self.rung) - 1)

    def insert(self, index, trial, metric):
        rung = self.metrics[index]
        place = next((i for i, (other, _) in enumerate(rung) if other >= metric), len(rung))
        rung.insert(place, [metric, trial])
        return place

    def more(self):
        return [self.create()] if len(self.rung) - self.invalid < self.max_trials else []

    def event(self, trial, time, metric):
        for index in range(self.rung[trial], len(self.lengths)):
            self.rung[trial] = index
            if time < self.lengths[index]:
                return [("continue", trial)]
            place = self.insert(index, trial, metric)
            if index == len(self.lengths) - 1 or place >= max(len(self.metrics[index]) // self.divisor, 1):
                break
        return [("stop", trial), *self.more()]

    def fail(self, trial):
        self.insert(self.rung[trial], trial, math.inf)
        return self.more()

    def reject(self, trial):
        self.invalid += 1
        self.metrics = [[entry for entry in rung if entry[1] != trial] for rung in self.metrics]
        return [("stop", trial), self.create()]


@given(st.data(), st.integers(1, 4), st.integers(2, 4), st.integers(1, 25), st.integers(1, 6))
def test_any_order_of_events_follows_the_book(data, rungs, divisor, trials, concurrent):
    lengths = [divisor**index for index in range(rungs)]
    keys = {"bracket_rungs": [rungs], "divisor": divisor, "max_concurrent_trials": concurrent, "stop_once": True}
    run = Run(make("adaptive_asha", max_trials=trials, max_length={"batches": lengths[-1]}, **keys))
    book = ByTheBook(lengths, divisor, trials, concurrent)
    assert [("create", trial) for trial in run.pending] == book.first
    rejections = 5
    while run.pending:
        trial = data.draw(st.sampled_from(sorted(run.pending)))
        what = data.draw(st.sampled_from([0.0, -1.0, 1.0, 2.0, 3.5, "error", "invalid_hyperparameters"]))
        if what == "error" or (what == "invalid_hyperparameters" and not rejections):
            ours, theirs = run.exit(trial), book.fail(trial)
        elif what == "invalid_hyperparameters":
            rejections -= 1
            ours, theirs = run.exit(trial, what), book.reject(trial)
        else:
            length = run.pending.pop(trial) + data.draw(st.integers(0, 3))
            ours, theirs = run.take(run.searcher.validated(trial, length, what)), book.event(trial, length, what)
        assert [(type(operation).__name__.lower(), operation.trial) for operation in ours] == theirs
    assert run.searcher.finished
