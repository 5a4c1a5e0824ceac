"""Brackets, rungs and previews, in whole numbers."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from driving import Run, make
from hypothesis import given
from hypothesis import strategies as st

from lakelens.errors import ConfigurationError
from lakelens.search import preview
from lakelens.search.brackets import (
    divide_concurrency,
    divide_trials,
    most_rungs,
    plan_brackets,
    rung_lengths,
    rungs_of_mode,
)
from lakelens.search.settings import SearcherSettings

pytestmark = pytest.mark.unit


def adaptive(**keys):
    return {"name": "adaptive_asha", "metric": "loss", "max_length": {"epochs": 9}, "max_trials": 10, **keys}


def planned(**keys):
    plan = plan_brackets(SearcherSettings.model_validate(adaptive(**keys)))
    return [(len(bracket.lengths), bracket.trials, bracket.concurrent) for bracket in plan]


@pytest.mark.parametrize(
    ("trials", "divisor", "rungs", "expected"),
    [
        (20, 3, [3, 2, 1], [12, 5, 3]),
        (100, 4, [4, 3, 2], [70, 22, 8]),
        (7, 4, [2, 1], [5, 2]),
    ],
)
def test_brackets_share_trials_by_the_work_that_a_trial_costs(trials, divisor, rungs, expected):
    assert divide_trials(trials, Fraction(divisor), rungs) == expected


@pytest.mark.parametrize(
    ("concurrent", "divisor", "trials", "expected"),
    [
        (0, 4, [40, 10], [10, 10]),
        (0, Fraction(5, 2), [5, 1], [2, 2]),
        (11, 3, [9, 3, 1], [4, 4, 3]),
        (1, 3, [9, 3, 1], [1, 1, 1]),
    ],
)
def test_brackets_share_concurrency_evenly_and_each_has_one_at_least(concurrent, divisor, trials, expected):
    assert divide_concurrency(concurrent, Fraction(divisor), trials) == expected


@pytest.mark.parametrize(
    ("rungs", "divisor", "length", "expected"),
    [
        (4, 2, 10, (1, 2, 5, 10)),
        (5, 4, 4, (1, 1, 1, 1, 4)),
        (2, "3.3", 33, (10, 33)),  # 33 / 3.3 is 10 in decimal, and a little less as binary numbers
    ],
)
def test_rungs_are_cumulative_lengths_cut_to_whole_units(rungs, divisor, length, expected):
    assert rung_lengths(rungs, Fraction(divisor), length) == expected


@pytest.mark.parametrize(("divisor", "length", "rungs"), [(3, 243, 6), (10, 1000, 4), (9, 59049, 6)])
def test_rungs_are_counted_without_logarithms(divisor, length, rungs):
    """Of which Determined's have one rung less."""
    assert most_rungs(10, Fraction(divisor), length, 10**9) == rungs
    assert most_rungs(10, Fraction(divisor), 10**9, length) == rungs


@pytest.mark.parametrize(
    ("mode", "rungs", "expected"),
    [
        ("aggressive", 5, [5]),
        ("standard", 5, [3, 4, 5]),
        ("standard", 4, [2, 3, 4]),
        ("conservative", 3, [1, 2, 3]),
    ],
)
def test_the_mode_chooses_the_rungs_of_the_brackets(mode, rungs, expected):
    assert rungs_of_mode(mode, rungs) == expected


def test_an_adaptive_search_is_planned_as_determined_plans_it():
    assert planned(max_length={"epochs": 100}, max_concurrent_trials=2) == [(2, 7, 1), (1, 3, 1)]
    # The defaults: standard, divisor 4, five rungs, 16 trials at one time.
    assert planned(max_length={"batches": 100_000}, max_trials=1000) == [(5, 707, 6), (4, 220, 5), (3, 73, 5)]
    # Rungs of brackets override the mode, and the largest come first.
    assert planned(mode="conservative", bracket_rungs=[1, 3], divisor=3) == [(3, 8, 8), (1, 2, 8)]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"max_rungs": 10, "max_length": {"batches": 900}, "divisor": 3, "max_concurrent_trials": 5},
         {100: 5, 300: 3, 900: 2}),
        ({"max_length": {"batches": 256}, "max_trials": 256, "mode": "aggressive"},
         {1: 192, 4: 48, 16: 12, 64: 3, 256: 1}),
        ({"max_trials": 1}, {9: 1}),
        ({"max_length": {"epochs": 2}, "bracket_rungs": [4], "max_trials": 100}, {1: 99, 2: 1}),
    ],
)  # fmt: skip
def test_a_preview_counts_the_trials_that_end_at_each_length(config, expected):
    assert preview(adaptive(**config)) == expected
    assert preview(adaptive(**config, stop_once=True)) == expected


@given(
    st.integers(1, 40),
    st.sampled_from([1.5, 2, 3, 4]),
    st.sampled_from(["aggressive", "standard", "conservative"]),
    st.integers(1, 81),
    st.booleans(),
)
def test_a_search_trains_what_its_preview_shows(trials, divisor, mode, length, stop_once):
    keys = {"max_trials": trials, "divisor": divisor, "mode": mode, "max_length": {"epochs": length}}
    lengths = Run(make("adaptive_asha", stop_once=stop_once, **keys)).finish(float)
    assert max(lengths) == length
    if not stop_once:  # which stops more trials than half when each is worse than those before
        assert Counter(lengths) == preview({"name": "adaptive_asha", "metric": "loss", **keys})


def test_a_preview_of_the_other_searchers_is_one_length():
    common = {"metric": "loss", "max_length": {"records": 500}}
    space = {
        "a": {"type": "int", "minval": 0, "maxval": 1, "count": 9},
        "b": {"type": "categorical", "vals": [1, 2, 3]},
    }
    assert preview({"name": "single", **common}) == {500: 1}
    assert preview({"name": "random", "max_trials": 7, **common}, space) == {500: 7}
    assert preview({"name": "grid", **common}, space) == {500: 6}
    with pytest.raises(ConfigurationError, match="hyperparameters: missing; the size of a grid"):
        preview({"name": "grid", **common})
