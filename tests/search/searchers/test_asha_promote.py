"""`adaptive_asha` by promotion: trials pause and continue."""

from __future__ import annotations

import itertools
import math

import pytest
from driving import Run, make, one_bracket
from hypothesis import given
from hypothesis import strategies as st

from lakelens.search import Continue, Create, Stop

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("concurrent", [0, 1, 3, 9, 16])
@pytest.mark.parametrize("smaller_is_better", [True, False])
def test_rising_losses_lowest_trial_first(concurrent, smaller_is_better):
    keys = {"max_length": {"batches": 9000}, "max_concurrent_trials": concurrent}
    run = Run(one_bracket(smaller_is_better=smaller_is_better, **keys))
    sign = 1 if smaller_is_better else -1
    assert run.finish(lambda trial: sign * 0.01 * (trial + 1)) == [9000, 3000, 3000, 3000, *[1000] * 8]
    assert sorted(run.stopped) == list(range(12))


@pytest.mark.parametrize("trials", [1, 2, 5])
@pytest.mark.parametrize("rungs", [1, 2, 4])
def test_a_bracket_without_a_promotion_trains_its_best_trial_in_full(trials, rungs):
    run = Run(one_bracket(rungs=rungs, divisor=7, max_trials=trials, max_length={"batches": 7 ** (rungs - 1)}))
    lengths = run.finish(lambda trial: abs(trial - 1))
    best = min(trials - 1, 1)
    assert lengths == [7 ** (rungs - 1) if trial == best or rungs == 1 else 1 for trial in range(trials)]


def test_a_trial_takes_the_place_of_a_better_one_that_failed_on_its_way_to_the_top():
    run = Run(one_bracket(max_trials=4, max_concurrent_trials=4))
    for trial in range(4):
        run.report(trial, [0.1, math.nan, 0.3, 0.2][trial])
    assert run.exit(0) == [Continue(3, 3)]
    assert run.exit(3) == [Continue(2, 3)]
    assert run.report(2, math.nan) == [Stop(1), Stop(2)]  # none that is left has a number
    assert run.searcher.finished


def test_a_trial_with_a_number_takes_the_place_of_one_that_reached_the_top_without():
    run = Run(one_bracket(rungs=2, max_trials=3, max_concurrent_trials=3))
    assert [run.report(trial, float(trial)) for trial in range(3)][2] == [Continue(0, 3)]
    assert run.report(0, math.nan) == [Stop(0), Continue(1, 3)]
    assert run.report(1, 5.0) == [Stop(1), Stop(2)]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("smaller_is_better", [True, False])
def test_metrics_that_are_not_finite_rank_last_in_order_of_arrival(bad, smaller_is_better):
    run = Run(one_bracket(rungs=2, max_trials=9, max_concurrent_trials=9, smaller_is_better=smaller_is_better))
    sign = 1 if smaller_is_better else -1
    operations = [run.report(trial, bad if trial < 4 else sign * trial) for trial in range(9)]
    assert operations[2] == [Continue(0, 3)]  # one in three goes on, whatever they are
    assert operations[4] == [Continue(4, 3)]
    assert operations[5] == [Continue(5, 3)]
    assert operations[8] == [Continue(6, 3)]
    assert run.report(6, sign * 6) == [Stop(6), *map(Stop, [7, 8, 1, 2, 3])]


def test_a_failed_trial_that_would_be_promoted_is_the_worst_of_the_rungs_above():
    run = Run(one_bracket(max_trials=9, max_concurrent_trials=9))
    operations = [run.exit(trial) for trial in range(9)]
    assert operations == [[]] * 9  # no trial continues, none is stopped a second time
    assert run.searcher.finished
    assert set(run.searcher.states.values()) == {"error"}
    run = Run(one_bracket(max_trials=9, max_concurrent_trials=9))
    for trial in range(3):
        run.exit(trial)  # trial 0 passes to the second rung as its worst
    operations = [run.report(trial, float(trial)) for trial in range(3, 9)]
    assert operations[:3] == [[Continue(3, 3)], [], [Continue(4, 3)]]
    assert operations[5] == [Continue(5, 3)]
    assert run.report(5, 1.0) == []
    assert run.report(4, 2.0) == [Continue(5, 9)]
    assert run.report(3, 3.0) == []
    assert run.report(5, 1.0) == [*map(Stop, [5, 6, 7, 8, 4, 3])]


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


def test_rungs_of_one_length_are_passed_at_once():
    run = Run(make("adaptive_asha", bracket_rungs=[4], max_trials=27, divisor=3, max_length={"epochs": 3}))
    assert set(run.pending.values()) == {1}
    operations = [run.report(trial, float(trial)) for trial in range(27)]
    assert operations[26] == [Continue(0, 3)]
    assert run.report(0, 0.0) == [Stop(0), *map(Stop, [*range(9, 27), *range(3, 9), 1, 2])]


def test_a_trial_that_went_further_than_asked_passes_what_it_has_reached():
    run = Run(one_bracket(max_trials=9, max_concurrent_trials=9))
    operations = [run.searcher.validated(trial, 4, float(trial)) for trial in range(9)]
    assert operations[2] == []  # trial 0 is in the second rung already
    assert operations[8][0] == Continue(0, 9)


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

    def __init__(self, rungs, divisor, max_trials, concurrent):
        self.metrics = [[] for _ in range(rungs)]  # [metric, trial, promoted], best first
        self.outstanding = [0] * rungs
        self.rung, self.failed, self.closed = {}, set(), set()
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
        return self.event(trial, math.inf)

    def event(self, trial, metric):
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
            promoted = None
            if place < new:
                promoted = trial
            elif new != old and not rung[old][2]:
                rung[old][2] = True
                promoted = rung[old][1]
            if promoted is not None:
                self.rung[promoted] = index + 1
                self.outstanding[index + 1] += 1
                if promoted in self.failed:
                    return self.event(promoted, math.inf)
                operations.append(("continue", promoted))
                trained = True
        if not trained and len(self.rung) < self.max_trials:
            operations.append(self.create())
        if len(self.metrics[0]) == self.max_trials and not self.whole:
            if any(self.outstanding):
                return operations
            for level in range(len(self.metrics) - 2, -1, -1):
                best = next((entry for entry in self.metrics[level] if not entry[2] and entry[0] < math.inf), None)
                if best is not None:
                    best[2] = True
                    self.rung[best[1]] = level + 1
                    self.outstanding[level + 1] += 1
                    return [*operations, ("continue", best[1])]
        if len(self.metrics[0]) == self.max_trials:
            for level, rung in enumerate(self.metrics):
                if self.outstanding[level]:
                    break
                for _, other, promoted in rung:
                    if not promoted and other not in self.closed | self.failed:
                        operations.append(("stop", other))
                        self.closed.add(other)
        return operations


def plain(operations):
    return [(type(operation).__name__.lower(), operation.trial) for operation in operations]


@given(st.data(), st.integers(1, 4), st.integers(2, 4), st.integers(1, 25), st.integers(1, 6))
def test_any_order_of_events_follows_the_book(data, rungs, divisor, trials, concurrent):
    keys = {"bracket_rungs": [rungs], "divisor": divisor, "max_concurrent_trials": concurrent}
    run = Run(make("adaptive_asha", max_trials=trials, max_length={"batches": divisor ** (rungs - 1)}, **keys))
    book = ByTheBook(rungs, divisor, trials, concurrent)
    assert [("create", trial) for trial in run.pending] == book.first
    for _ in itertools.count():
        if not run.pending:
            break
        trial = data.draw(st.sampled_from(sorted(run.pending)))
        metric = data.draw(st.sampled_from([0.0, -1.0, 1.0, 2.0, 3.5, None]))
        ours = run.exit(trial) if metric is None else run.report(trial, metric)
        theirs = book.fail(trial) if metric is None else book.event(trial, metric)
        assert plain(ours) == theirs
    assert run.searcher.finished
