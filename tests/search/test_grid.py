"""Draws and grids."""

from __future__ import annotations

import math

import pytest
from driving import make
from hypothesis import given
from hypothesis import strategies as st

from lakelens.search.searchers.fixed_length import Grid
from lakelens.training.configuration.space import Space

pytestmark = pytest.mark.unit

SPACE = {
    "learning_rate": {"type": "log", "base": 10, "minval": -5, "maxval": -1},
    "optimizer": {
        "name": {"type": "categorical", "vals": ["adam", "sgd", {"name": "lion"}]},
        "momentum": {"decay": {"type": "double", "minval": 0.5, "maxval": 0.99}},
    },
    "width": {"type": "int", "minval": 8, "maxval": 10},
    "layers": [32, 64],
    "activation": "relu",
    "stem": {"type": "const", "val": {"kernel": 3}},
    "nothing": None,
    "empty": {},
}


def test_draws_keep_the_nesting_and_plain_values_are_constant():
    values = Space.read(SPACE).draw(seed=1, trial=0)
    assert list(values) == list(SPACE)
    assert (values["layers"], values["activation"], values["stem"]) == ([32, 64], "relu", {"kernel": 3})
    assert (values["nothing"], values["empty"]) == (None, {})
    assert 1e-5 <= values["learning_rate"] <= 1e-1
    assert values["optimizer"]["name"] in ["adam", "sgd", {"name": "lion"}]
    assert 0.5 <= values["optimizer"]["momentum"]["decay"] <= 0.99


def test_an_int_includes_both_ends_and_all_values_are_about_as_frequent():
    space = Space.read(SPACE)
    drawn = [space.draw(seed=2, trial=trial)["width"] for trial in range(3000)]
    assert set(drawn) == {8, 9, 10}
    assert all(850 < drawn.count(value) < 1150 for value in (8, 9, 10))


def test_log_bounds_are_exponents_and_exponents_are_uniform():
    space = Space.read(SPACE)
    drawn = [math.log10(space.draw(seed=3, trial=trial)["learning_rate"]) for trial in range(4000)]
    assert all(900 < sum(low <= value < low + 1 for value in drawn) < 1100 for low in (-5, -4, -3, -2))


def test_a_new_hyperparameter_does_not_change_the_draws_of_the_others():
    before = Space.read(SPACE).draw(seed=4, trial=7)
    more = {"aaa": {"type": "int", "minval": 0, "maxval": 9}, **dict(reversed(SPACE.items()))}
    more["optimizer"] = {"eps": {"type": "double", "minval": 0, "maxval": 1}, **SPACE["optimizer"]}
    after = Space.read(more).draw(seed=4, trial=7)
    del after["aaa"], after["optimizer"]["eps"]
    assert after == before


def test_draws_are_the_same_in_every_version():
    drawn = Space.read(SPACE).draw(seed=0, trial=0)
    assert drawn["width"] == 10
    assert drawn["optimizer"] == {"name": "adam", "momentum": {"decay": 0.5590588926176846}}
    assert drawn["learning_rate"] == pytest.approx(0.00018326858773484175, rel=1e-12)  # the C library's power


@given(st.integers(), st.integers(0, 10**6), st.integers(-(2**70), 2**70), st.integers(0, 2**70))
def test_no_draw_leaves_its_bounds(seed, trial, low, width):
    bounds = {"minval": low, "maxval": low + width}
    space = Space.read(
        {
            "int": {"type": "int", **bounds},
            "double": {"type": "double", **bounds},
            "all": {"type": "double", "minval": -1.7e308, "maxval": 1.7e308},
            "log": {"type": "log", "base": 0.5, "minval": -3, "maxval": 3},
            "pinned": {"type": "int", "minval": 3, "maxval": 3},
        }
    )
    values = space.draw(seed, trial)
    assert low <= values["int"] <= low + width
    assert float(low) <= values["double"] <= float(low + width)
    assert math.isfinite(values["all"])
    assert 1 / 8 <= values["log"] <= 8
    assert values["pinned"] == 3


def test_a_drawn_container_is_the_trials_own():
    space = Space.read({"a": [1], "b": {"type": "categorical", "vals": [{"c": 1}]}})
    values = space.draw(0, 0)
    values["a"].append(2)
    values["b"]["c"] = 2
    assert space.draw(0, 0) == {"a": [1], "b": {"c": 1}}


def ints(low, high, count):
    return {"type": "int", "minval": low, "maxval": high, "count": count}


def points(space):
    grid = Grid(Space.read(space))
    return [grid.point(number) for number in range(grid.size)]


def test_a_grid_is_row_major_in_the_order_of_names():
    expected = [(a, b) for a in (0, 10, 20) for b in (0, 5, 10)]
    assert [(p["a"], p["b"]) for p in points({"b": ints(0, 10, 3), "a": ints(0, 20, 3)})] == expected
    assert [(p["g"]["a"], p["h"]) for p in points({"h": ints(0, 1, 2), "g": {"a": ints(0, 1, 2)}})] == [
        (0, 0), (0, 1), (1, 0), (1, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("leaf", "expected"),
    [
        (ints(0, 5, 3), [0, 3, 5]),  # halves away from zero: Python's round gives 2
        (ints(-5, 0, 3), [-5, -3, 0]),
        (ints(0, 5, 1), [3]),
        (ints(1, 3, 100), [1, 2, 3]),
        ({"type": "double", "minval": 0, "maxval": 1, "count": 5}, [0, 0.25, 0.5, 0.75, 1]),
        ({"type": "double", "minval": 1, "maxval": 4, "count": 1}, [2.5]),
        ({"type": "log", "base": 10, "minval": -4, "maxval": -2, "count": 3}, [1e-4, 1e-3, 1e-2]),
        ({"type": "log", "base": 10, "minval": -4, "maxval": -2, "count": 1}, [1e-3]),
        ({"type": "categorical", "vals": ["x", None, [1]]}, ["x", None, [1]]),
        ({"type": "const", "val": 7}, [7]),
        ("plain", ["plain"]),
    ],
)
def test_the_points_of_each_kind(leaf, expected):
    assert [point["a"] for point in points({"a": leaf})] == expected


def test_a_grid_is_never_listed_as_a_whole():
    grid = Grid(Space.read({name: ints(0, 10**9, 10**9) for name in "abc"}))
    assert grid.size == 10**27
    assert grid.point(10**27 - 1) == {"a": 10**9, "b": 10**9, "c": 10**9}


def test_trials_have_the_draw_of_their_number_whatever_happens():
    adaptive = {"max_trials": 8, "max_length": {"epochs": 9}}
    drawn = [operation.hyperparameters for operation in make("random", SPACE, 9, max_trials=8).start()]
    space = Space.read(SPACE)
    assert drawn == [space.draw(9, trial) for trial in range(8)]
    searcher = make("adaptive_asha", SPACE, 9, **adaptive)
    started = [operation.hyperparameters for operation in searcher.start()]
    assert started == drawn[: len(started)]
    assert searcher.hyperparameters(7) == drawn[7]
