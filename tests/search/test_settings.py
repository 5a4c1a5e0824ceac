"""Configurations that are refused, and the words that a user sees."""

from __future__ import annotations

import datetime

import pytest

from lakelens.errors import ConfigurationError, InvalidArgumentError, UsageError
from lakelens.search import create_searcher, preview
from lakelens.search.settings import KEYS, read_settings

pytestmark = pytest.mark.unit

ADAPTIVE = {"name": "adaptive_asha", "metric": "loss", "max_length": {"epochs": 9}, "max_trials": 10}
MISSING = object()


def with_keys(base, **keys):
    return {key: value for key, value in {**base, **keys}.items() if value is not MISSING}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"name": MISSING}, ["searcher.name: missing", "single, random, grid, adaptive_asha"]),
        ({"name": "adaptive"}, ["searcher.name='adaptive'", "one of single, random, grid, adaptive_asha",
                                "did you mean adaptive_asha"]),
        ({"max_trails": 3}, ["searcher.max_trails", "no such key", "did you mean max_trials"]),
        ({"max_time": 3}, ["searcher.max_time", "adaptive_asha has no such key", "max_length"]),
        ({"max_trials": MISSING}, ["searcher.max_trials: missing", "adaptive_asha needs it"]),
        ({"max_trials": None}, ["searcher.max_trials: missing"]),
        ({"max_trials": 0}, ["searcher.max_trials=0", "at least 1"]),
        ({"max_trials": 2.0}, ["searcher.max_trials=2.0", "whole number"]),
        ({"max_trials": True}, ["searcher.max_trials=True", "whole number"]),
        ({"max_trials": "1e3"}, ["searcher.max_trials='1e3'", "not text", "1.0e-4"]),
        ({"metric": MISSING}, ["searcher.metric: missing"]),
        ({"metric": 3}, ["searcher.metric=3", "name of a metric"]),
        ({"smaller_is_better": "no"}, ["searcher.smaller_is_better='no'", "true or false"]),
        ({"max_length": MISSING}, ["searcher.max_length: missing"]),
        ({"max_length": 9}, ["searcher.max_length=9", "{epochs: 9}"]),
        ({"max_length": {"epoch": 9}}, ["searcher.max_length.epoch", "did you mean epochs"]),
        ({"max_length": {}}, ["searcher.max_length={}", "exactly one of epochs, batches, records"]),
        ({"max_length": {"epochs": 9, "batches": 9}}, ["searcher.max_length=", "exactly one"]),
        ({"max_length": {"epochs": 0}}, ["searcher.max_length.epochs=0", "at least 1"]),
        ({"max_length": {"epochs": 1.5}}, ["searcher.max_length.epochs=1.5", "whole number"]),
        ({"max_concurrent_trials": -1}, ["searcher.max_concurrent_trials=-1", "at least 0"]),
        ({"mode": "aggresive"}, ["searcher.mode='aggresive'", "one of aggressive", "did you mean aggr"]),
        ({"divisor": 1}, ["searcher.divisor=1", "above 1"]),
        ({"divisor": float("nan")}, ["searcher.divisor=nan", "finite number"]),
        ({"divisor": "4"}, ["searcher.divisor='4'", "finite number, not text"]),
        ({"divisor": 10**400}, ["searcher.divisor=1000", "finite number"]),
        ({"max_rungs": 0}, ["searcher.max_rungs=0", "at least 1"]),
        ({"bracket_rungs": 3}, ["searcher.bracket_rungs=3", "list of whole numbers"]),
        ({"bracket_rungs": [3, 0]}, ["searcher.bracket_rungs[1]=0", "at least 1"]),
        ({"stop_once": 1}, ["searcher.stop_once=1", "true or false"]),
        ({"name": "random", "divisor": 4}, ["searcher.divisor", "the searcher random has no such key"]),
        ({"name": "single"}, ["searcher.max_trials", "the searcher single has no such key"]),
        ({"name": "grid"}, ["searcher.max_trials", "the searcher grid has no such key"]),
        ({5: 1}, ["searcher", "the key 5 is not text", "'5'"]),
    ],
)  # fmt: skip
def test_a_searcher_section_is_refused_by_path_value_and_rule(keys, words):
    config = {**with_keys(ADAPTIVE, **{str(key): value for key, value in keys.items() if isinstance(key, str)})}
    config.update({key: value for key, value in keys.items() if not isinstance(key, str)})
    for use in (lambda: create_searcher(config, {}), lambda: preview(config, {})):
        with pytest.raises(ConfigurationError) as refused:
            use()
        assert [word for word in words if word not in str(refused.value)] == []
        assert isinstance(refused.value, UsageError)
        assert isinstance(refused.value, ValueError)


@pytest.mark.parametrize("config", [None, [], "single", 3])
def test_a_searcher_section_is_a_mapping(config):
    with pytest.raises(ConfigurationError, match=r"searcher=.*must be a mapping"):
        create_searcher(config, {})


RANGE = {"type": "double", "minval": 0, "maxval": 1}


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ([], ["hyperparameters=[]", "mapping"]),
        ({"a": {"type": "flaot", "minval": 0, "maxval": 1}}, ["hyperparameters.a.type='flaot'", "const, categorical"]),
        ({"a": {"type": "integer"}}, ["hyperparameters.a.type='integer'", "did you mean int"]),
        ({"optimizer": {"type": "adam", "lr": 1}}, ["hyperparameters.optimizer.type='adam'", "called type"]),
        ({"a": {**RANGE, "maxvalue": 3}}, ["hyperparameters.a.maxvalue", "did you mean maxval", "type double"]),
        ({"a": {**RANGE, "base": 3}}, ["hyperparameters.a.base", "type double has no such key"]),
        ({"a": {"type": "log", "minval": -5, "maxval": -1}}, ["hyperparameters.a.base: missing", "type log"]),
        ({"a": {"type": "const"}}, ["hyperparameters.a.val: missing"]),
        ({"a": {"type": "categorical", "vals": []}}, ["hyperparameters.a.vals=[]", "at least one value"]),
        ({"a": {"type": "categorical", "vals": "ab"}}, ["hyperparameters.a.vals='ab'", "list"]),
        ({"a": {"type": "int", "minval": 0.5, "maxval": 3}}, ["hyperparameters.a.minval=0.5", "whole number"]),
        ({"a": {"type": "int", "minval": 4, "maxval": 3}}, ["hyperparameters.a.minval=4", "above maxval=3"]),
        ({"a": {**RANGE, "minval": "1e-4"}}, ["hyperparameters.a.minval='1e-4'", "1e-4 as text and 1.0e-4"]),
        ({"a": {**RANGE, "maxval": float("inf")}}, ["hyperparameters.a.maxval=inf", "finite"]),
        ({"a": {**RANGE, "count": 0}}, ["hyperparameters.a.count=0", "at least 1"]),
        ({"a": {"type": "log", "base": 1, "minval": 0, "maxval": 1}}, ["hyperparameters.a.base=1", "not 1"]),
        ({"a": {"type": "log", "base": -2, "minval": 0, "maxval": 1}}, ["hyperparameters.a.base=-2", "above 0"]),
        ({"a": {"type": "log", "base": 10, "minval": 1, "maxval": 512}}, ["hyperparameters.a.maxval=512", "exponents"]),
        (
            {"a": {"type": "log", "base": 10, "minval": -999, "maxval": 1}},
            ["hyperparameters.a.minval=-999", "exponents"],
        ),
        ({"g": {"a": {"minval": 0, "maxval": 1}}}, ["hyperparameters.g.a: it has minval and no type"]),
        ({"a": {"val": 3}}, ["hyperparameters.a: it has val and no type", "{type: const"]),
        ({"a": [1, dict(RANGE)]}, ["hyperparameters.a[1]=", "inside a list is not drawn"]),
        ({"a": datetime.date(2026, 1, 1)}, ["hyperparameters.a=", "date is no plain value"]),
        ({"a": {3: 4}}, ["hyperparameters.a: the key 3 is not text"]),
    ],
)
def test_a_hyperparameters_section_is_refused_by_path_value_and_rule(space, words):
    with pytest.raises(ConfigurationError) as refused:
        create_searcher(with_keys(ADAPTIVE), space)
    assert [word for word in words if word not in str(refused.value)] == []


@pytest.mark.parametrize("kind", ["int", "double", "log"])
def test_a_grid_needs_the_count_of_every_number(kind):
    leaf = {"type": kind, "minval": 0, "maxval": 1, **({"base": 2} if kind == "log" else {})}
    config = {"name": "grid", "metric": "loss", "max_length": {"epochs": 9}}
    with pytest.raises(ConfigurationError, match=r"hyperparameters\.g\.a\.count: missing"):
        create_searcher(config, {"g": {"a": leaf}})


def test_a_long_value_is_cut_in_its_message():
    with pytest.raises(ConfigurationError) as refused:
        create_searcher(with_keys(ADAPTIVE, mode="x" * 10_000), {})
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("seed", [1.5, "1", True, None])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(InvalidArgumentError, match="seed="):
        create_searcher(with_keys(ADAPTIVE), {}, seed)


def test_defaults_are_those_of_determined_and_null_means_the_default():
    expected = read_settings(ADAPTIVE)
    assert (expected.smaller_is_better, expected.mode, expected.divisor, expected.max_rungs) == (True, "standard", 4, 5)
    assert (expected.bracket_rungs, expected.max_concurrent_trials, expected.stop_once) == ((), 16, False)
    optional = set(KEYS["adaptive_asha"]) - set(ADAPTIVE)
    assert read_settings({**ADAPTIVE, **dict.fromkeys(optional)}) == expected
