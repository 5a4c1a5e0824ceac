"""`single`, `random` and `grid`: every trial trains to the end."""

from __future__ import annotations

import pytest
from driving import Run, make

from lakelens.search import Create, Stop

pytestmark = pytest.mark.unit

SPACE = {"a": {"type": "int", "minval": 0, "maxval": 20, "count": 3}, "b": {"type": "int", "minval": 0, "maxval": 10, "count": 3}}  # fmt: skip  # noqa: E501


def test_a_single_search_is_one_trial():
    searcher = make("single", {"layers": [1, 2]})
    (created,) = searcher.start()
    assert created == Create(0, {"layers": [1, 2]}, 9)
    created.hyperparameters["layers"].append(3)  # what a runner does to them does not reach the searcher
    assert searcher.hyperparameters(0) == {"layers": [1, 2]}
    assert not searcher.finished
    assert searcher.validated(0, 9, 0.5) == [Stop(0)]
    assert (searcher.finished, searcher.states) == (True, {0: "completed"})


def test_a_random_search_asks_for_no_more_trials_at_one_time_than_it_may():
    run = Run(make("random", SPACE, max_trials=5, max_concurrent_trials=2))
    assert list(run.pending) == [0, 1]
    assert [type(operation) for operation in run.report(1, 0.5)] == [Stop, Create]
    assert list(run.pending) == [0, 2]
    assert run.finish(lambda _: 1.0) == [9] * 5
    assert run.stopped == [1, 0, 2, 3, 4]


def test_without_a_limit_all_trials_are_asked_for_at_once():
    assert len(make("random", SPACE, max_trials=50, max_concurrent_trials=0).start()) == 50
    assert len(make("random", SPACE, max_trials=50).start()) == 16
    assert len(make("grid", SPACE, max_concurrent_trials=0).start()) == 9


def test_a_grid_tries_every_point_once_in_its_order_and_replaces_none():
    run = Run(make("grid", SPACE, max_concurrent_trials=2))
    assert run.exit(0, "invalid_hyperparameters") == [Create(2, {"a": 0, "b": 10}, 9)]
    assert run.exit(1) == [Create(3, {"a": 10, "b": 0}, 9)]
    assert run.finish(lambda _: 1.0) == [9] * 7
    points = [tuple(run.searcher.hyperparameters(trial).values()) for trial in run.searcher.states]
    assert points == [(a, b) for a in (0, 10, 20) for b in (0, 5, 10)]


def test_an_error_counts_and_invalid_hyperparameters_draw_a_replacement():
    run = Run(make("random", SPACE, max_trials=3, max_concurrent_trials=1))
    first = run.searcher.hyperparameters(0)
    (replacement,) = run.exit(0, "invalid_hyperparameters")
    assert (replacement.trial, replacement.length) == (1, 9)
    assert replacement.hyperparameters != first
    assert [operation.trial for operation in run.exit(1)] == [2]
    run.finish(lambda _: 1.0)
    assert list(run.searcher.states.values()) == ["invalid_hyperparameters", "error", "completed", "completed"]
