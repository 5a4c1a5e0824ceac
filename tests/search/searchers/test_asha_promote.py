"""`adaptive_asha` by promotion: trials pause and continue."""

from __future__ import annotations

import math

import pytest
from driving import Run, make, one_bracket
from hypothesis import given
from hypothesis import strategies as st

from lakelens.search import Continue, Create, Stop

pytestmark = pytest.mark.unit


def test_invalid_hyperparameters_after_a_promotion_leave_no_metric_behind():
    run = Run(one_bracket(rungs=2, max_trials=5, max_concurrent_trials=1))
    for trial in range(3):
        run.report(trial, float(trial))
    assert run.exit(0, "invalid_hyperparameters") == [Stop(0), Create(3, {}, 1)]
    # Three metrics are left with this one, and trial 1 is the best of them.
    assert run.report(3, 3.0) == [Continue(1, 3)]


def test_a_trial_that_is_among_the_best_once_another_was_invalid_is_promoted_next():
    run = Run(one_bracket(rungs=2, max_trials=6, max_concurrent_trials=2))
    for trial in range(4):
        run.report(trial, float(trial))
    assert list(run.pending) == [0, 4]
    assert run.exit(0, "invalid_hyperparameters") == [Stop(0), Create(5, {}, 1)]
    # Trials 1, 2 and 3 are left, and one in three goes on.
    assert run.report(4, 4.0) == [Continue(1, 3)]


def test_a_trial_that_was_stopped_is_never_promoted():
    run = Run(one_bracket(rungs=2, max_trials=6, max_concurrent_trials=6))
    for trial in range(6):
        run.report(trial, float(trial))
    run.report(1, 1.0)
    assert run.stopped == [1, 2, 3, 4, 5]
    assert run.exit(0, "invalid_hyperparameters") == [Stop(0), Create(6, {}, 1)]
    # The sixth metric is back: without its stop trial 2 would go on.
    run.report(6, 9.0)
    assert run.searcher.finished
    assert run.stopped == [1, 2, 3, 4, 5, 0, 6]


def test_brackets_are_independent():
    keys = {"max_length": {"epochs": 100}, "max_trials": 10, "max_concurrent_trials": 2}
    run = Run(make("adaptive_asha", **keys))
    assert run.pending == {0: 25, 1: 100}
    assert run.report(1, 0.5) == [Stop(1), Create(2, {}, 100)]
    assert run.report(0, 0.5) == [Create(3, {}, 25)]
    run.finish(float)
    assert len(run.searcher.states) == 10


class ByTheBook:
    """The rules of the promotion variant, step by step over plain lists; without invalid hyperparameters."""

    def __init__(self, lengths, divisor, max_trials, concurrent):
        self.lengths = lengths
        self.metrics = [[] for _ in lengths]  # [metric, trial, promoted], best first
        self.outstanding = [0] * len(lengths)
        self.rung, self.reached, self.failed, self.closed = {}, {}, set(), set()
        self.divisor, self.max_trials = divisor, max_trials
        self.whole = False  # whether a trial has reached the top with a number
        self.first = [self.create() for _ in range(min(concurrent, max_trials))]

    def create(self):
        trial = len(self.rung)
        self.rung[trial] = 0
        self.outstanding[0] += 1
        return ("create", trial)

    def fail(self, trial):
        self.failed.add(trial)
        return self.event(trial, math.inf, 0)

    def event(self, trial, metric, length):
        self.reached[trial] = length
        index, operations, trained = self.rung[trial], [], False
        rung = self.metrics[index]
        self.outstanding[index] -= 1
        if index == len(self.metrics) - 1:
            self.whole = self.whole or metric < math.inf
            if trial not in self.failed:
                operations.append(("stop", trial))
                self.closed.add(trial)
        else:
            old, new = len(rung) // self.divisor, (len(rung) + 1) // self.divisor
            place = next((i for i, (other, _, _) in enumerate(rung) if other > metric), len(rung))
            rung.insert(place, [metric, trial, place < new])
            promoted = rung[place] if place < new else rung[old] if new != old and not rung[old][2] else None
            if promoted is not None:
                operations, trained = self.promote(promoted, index)
                if not trained:
                    return operations
        if not trained and len(self.rung) < self.max_trials:
            operations.append(self.create())
        if len(self.metrics[0]) == self.max_trials and not self.whole:
            if any(self.outstanding):
                return operations
            for level in range(len(self.metrics) - 2, -1, -1):
                best = next((entry for entry in self.metrics[level] if not entry[2] and entry[0] < math.inf), None)
                if best is not None:
                    return [*operations, *self.promote(best, level)[0]]
        if len(self.metrics[0]) == self.max_trials:
            for level, rung in enumerate(self.metrics):
                if self.outstanding[level]:
                    break
                for _, other, promoted in rung:
                    if not promoted and other not in self.closed | self.failed:
                        operations.append(("stop", other))
                        self.closed.add(other)
        return operations

    def promote(self, entry, index):
        """The operations, and whether the trial trains; it may have failed, or be further already."""
        metric, trial, _ = entry
        entry[2] = True
        self.rung[trial] = index + 1
        self.outstanding[index + 1] += 1
        if trial in self.failed or self.reached[trial] >= self.lengths[index + 1]:
            return self.event(trial, metric, self.reached[trial]), False
        return [("continue", trial)], True


def plain(operations):
    return [(type(operation).__name__.lower(), operation.trial) for operation in operations]


@given(st.data(), st.integers(1, 4), st.integers(2, 4), st.integers(1, 25), st.integers(1, 6), st.booleans())
def test_any_order_of_events_follows_the_book(data, rungs, divisor, trials, concurrent, smaller_is_better):
    length = data.draw(st.sampled_from([divisor ** (rungs - 1), 3]))  # with 3 the first rungs may have one length
    keys = {"bracket_rungs": [rungs], "divisor": divisor, "max_concurrent_trials": concurrent}
    keys |= {"max_trials": trials, "max_length": {"batches": length}, "smaller_is_better": smaller_is_better}
    run = Run(make("adaptive_asha", **keys))
    book = ByTheBook([max(length // divisor**k, 1) for k in reversed(range(rungs))], divisor, trials, concurrent)
    assert [("create", trial) for trial in run.pending] == book.first
    while run.pending:
        trial = data.draw(st.sampled_from(sorted(run.pending)))
        metric = data.draw(st.sampled_from([0.0, -1.0, 1.0, 2.0, 3.5, math.nan, math.inf, -math.inf, None]))
        if metric is None:
            ours, theirs = run.exit(trial), book.fail(trial)
        else:
            reached = run.pending.pop(trial) + data.draw(st.sampled_from([0, 0, 0, 1, 3]))
            ours = run.take(run.searcher.validated(trial, reached, metric if smaller_is_better else -metric))
            theirs = book.event(trial, metric if math.isfinite(metric) else math.inf, reached)
        assert plain(ours) == theirs
    assert run.searcher.finished
