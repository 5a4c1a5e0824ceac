"""The benchmark of searches: its limit, its slots and its curves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import learning_curves as curves
from benchmarks import search, search_slots

pytestmark = pytest.mark.unit


def test_the_limit_is_the_mean_of_the_brackets_savings() -> None:
    assert search.limit(mode="aggressive") == 81 / 5
    assert search.limit() == pytest.approx((81 / 5 + 27 / 4 + 9 / 3) / 3)


@pytest.mark.parametrize(("slots", "expected"), [(1, 12), (2, 16), (3, 15)])
def test_epochs_are_slots_times_the_time_until_the_target(slots: int, expected: int) -> None:
    lengths = iter([(3, False), (4, False), (5, True), (9, False), (9, False)])
    work = ((length, lambda done=done: done) for length, done in lengths)
    assert search.epochs_to_target(work, slots) == expected


def test_random_search_trains_every_trial_to_the_end() -> None:
    goal = curves.target("alike", 0.05)
    epochs = search.epochs_to_target(search.lakelens_work("alike", goal, 3, search.config("random", 4000, 1)), 1)
    assert epochs % curves.MAX_LENGTH == 0


def test_both_curves_end_alike_and_only_one_crosses() -> None:
    best, fast = (
        {"learning_rate": rate, "width": 256, "dropout": 0.3, "optimizer": "adam"} for rate in (10**-2.5, 0.02)
    )
    for name in curves.NAMES:
        assert curves.loss(name, best, 81) == pytest.approx(0.05, abs=1e-3)
        assert curves.loss(name, best, 81) < curves.loss(name, fast, 81)
    assert curves.loss("alike", best, 1) < curves.loss("alike", fast, 1)
    assert curves.loss("crossing", best, 1) > curves.loss("crossing", fast, 1)
    assert curves.measured("alike", best, 3) == curves.measured("alike", dict(reversed(best.items())), 3)


def test_slot_time_between_build_and_last_step_is_busy_and_the_rest_is_not() -> None:
    marks = [("build", 10), ("step", 12), ("step", 15), ("build", 17), ("build", 20), ("step", 26)]
    assert search_slots.busy_seconds([{"what": what, "time": time} for what, time in marks]) == 5 + 6
    events = [
        {"event": "started", "time": 1.0},
        {"event": "completed", "trial": 0, "time": 9.0},
        {"event": "finished", "time": 99.0},
    ]
    assert search_slots.slot_seconds(events) == 8
