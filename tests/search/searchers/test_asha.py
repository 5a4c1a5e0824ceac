"""`adaptive_asha`, by promotion and by stopping, against the rules of both over plain lists."""

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


class Book:
    """One bracket of a variant."""

    def __init__(self, lengths, divisor, max_trials, concurrent):
        self.lengths, self.divisor, self.max_trials = lengths, divisor, max_trials
        self.metrics = [[] for _ in lengths]  # [metric, trial, ...], best first; not finite is infinite
        self.outstanding = [0] * len(lengths)
        self.rung, self.invalid = {}, 0
        self.first = [operation for _ in range(min(concurrent, max_trials)) for operation in self.more()]

    def more(self):
        if len(self.rung) - self.invalid == self.max_trials:
            return []
        self.rung[len(self.rung)] = 0
        self.outstanding[0] += 1
        return [("create", len(self.rung) - 1)]


class StoppingBook(Book):
    """A trial continues at once or never."""

    rejections = 5  # and no more, so that the search ends

    def insert(self, index, trial, metric):
        rung = self.metrics[index]
        place = next((i for i, (other, _) in enumerate(rung) if other >= metric and metric < math.inf), len(rung))
        rung.insert(place, [metric, trial])
        return place

    def event(self, trial, length, metric):
        for index in range(self.rung[trial], len(self.lengths)):
            self.rung[trial] = index
            if length < self.lengths[index]:
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
        return [("stop", trial), *self.more()]


class PromotionBook(Book):
    """Trials pause and continue; the tests above have those with invalid hyperparameters."""

    rejections = 0

    def __init__(self, *sizes):
        self.reached, self.failed, self.closed = {}, set(), set()
        self.whole = False  # whether a trial has reached the top with a number
        super().__init__(*sizes)

    def fail(self, trial):
        self.failed.add(trial)
        return self.event(trial, 0, math.inf)

    def event(self, trial, length, metric):
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
        if not trained:
            operations += self.more()
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
            return self.event(trial, self.reached[trial], metric), False
        return [("continue", trial)], True


@pytest.mark.parametrize("variant", [PromotionBook, StoppingBook])
@given(st.data(), st.integers(1, 4), st.integers(2, 4), st.integers(1, 25), st.integers(1, 6), st.booleans())
def test_any_order_of_events_follows_the_book(variant, data, rungs, divisor, trials, concurrent, smaller_is_better):
    length = data.draw(st.sampled_from([divisor ** (rungs - 1), 3]))  # with 3 the first rungs may have one length
    keys = {"bracket_rungs": [rungs], "divisor": divisor, "max_concurrent_trials": concurrent}
    keys |= {"max_trials": trials, "max_length": {"batches": length}, "smaller_is_better": smaller_is_better}
    run = Run(make("adaptive_asha", stop_once=variant is StoppingBook, **keys))
    book = variant([max(length // divisor**k, 1) for k in reversed(range(rungs))], divisor, trials, concurrent)
    assert [("create", trial) for trial in run.pending] == book.first
    rejections = variant.rejections
    while run.pending:
        trial = data.draw(st.sampled_from(sorted(run.pending)))
        what = data.draw(st.sampled_from([0.0, -1.0, 1.0, 2.0, 3.5, math.nan, math.inf, -math.inf, "error", "invalid"]))
        if what == "invalid" and rejections:
            rejections -= 1
            ours, theirs = run.exit(trial, "invalid_hyperparameters"), book.reject(trial)
        elif isinstance(what, str):
            ours, theirs = run.exit(trial), book.fail(trial)
        else:
            reached = run.pending.pop(trial) + data.draw(st.sampled_from([0, 0, 0, 1, 3]))
            ours = run.take(run.searcher.validated(trial, reached, what if smaller_is_better else -what))
            theirs = book.event(trial, reached, what if math.isfinite(what) else math.inf)
        assert [(type(operation).__name__.lower(), operation.trial) for operation in ours] == theirs
    assert run.searcher.finished
