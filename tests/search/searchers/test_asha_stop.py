"""`adaptive_asha` with `stop_once`: a trial goes on at once or never."""

from __future__ import annotations

import math

import pytest
from driving import Run, make
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.unit


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
        if not math.isfinite(metric):
            rung.append([math.inf, trial])
            return len(rung) - 1
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


@given(st.data(), st.integers(1, 4), st.integers(2, 4), st.integers(1, 25), st.integers(1, 6), st.booleans())
def test_any_order_of_events_follows_the_book(data, rungs, divisor, trials, concurrent, smaller_is_better):
    length = data.draw(st.sampled_from([divisor ** (rungs - 1), 3]))  # with 3 the first rungs may have one length
    keys = {"bracket_rungs": [rungs], "divisor": divisor, "max_concurrent_trials": concurrent, "stop_once": True}
    keys |= {"max_trials": trials, "max_length": {"batches": length}, "smaller_is_better": smaller_is_better}
    run = Run(make("adaptive_asha", **keys))
    book = ByTheBook([max(length // divisor**k, 1) for k in reversed(range(rungs))], divisor, trials, concurrent)
    assert [("create", trial) for trial in run.pending] == book.first
    rejections = 5
    while run.pending:
        trial = data.draw(st.sampled_from(sorted(run.pending)))
        what = data.draw(st.sampled_from([0.0, -1.0, 1.0, 2.0, 3.5, math.nan, math.inf, -math.inf, "error", "invalid"]))
        if what == "error" or (what == "invalid" and not rejections):
            ours, theirs = run.exit(trial), book.fail(trial)
        elif what == "invalid":
            rejections -= 1
            ours, theirs = run.exit(trial, "invalid_hyperparameters"), book.reject(trial)
        else:
            reached = run.pending.pop(trial) + data.draw(st.integers(0, 3))
            ours = run.take(run.searcher.validated(trial, reached, what if smaller_is_better else -what))
            theirs = book.event(trial, reached, what)
        assert [(type(operation).__name__.lower(), operation.trial) for operation in ours] == theirs
    assert run.searcher.finished
