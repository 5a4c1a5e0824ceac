"""Configurations that are refused, and the words that a user sees; more are in training/configuration."""

from __future__ import annotations

import datetime

import pytest

from lakelens.errors import ConfigurationError, InvalidArgumentError, UsageError
from lakelens.search import create_searcher, preview
from lakelens.search.settings import SearcherSettings

pytestmark = pytest.mark.unit

ADAPTIVE = {"name": "adaptive_asha", "metric": "loss", "max_length": {"epochs": 9}, "max_trials": 10}
MISSING = object()


def with_keys(base, **keys):
    return {key: value for key, value in {**base, **keys}.items() if value is not MISSING}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"name": MISSING}, ["searcher.name: a required key is missing"]),
        ({"name": "adaptive"}, ["name is 'adaptive': must be one of 'single'", "(did you mean 'adaptive_asha'?)"]),
        ({"max_trails": 3}, ["searcher.max_trails is 3: there is no such key; did you mean 'max_trials'?"]),
        ({"max_trials": None}, ["searcher adaptive_asha needs max_trials"]),
        ({"max_trials": 0}, ["searcher.max_trials is 0: must be at least 1"]),
        ({"max_trials": True}, ["searcher.max_trials is True: give a whole number"]),
        ({"metric": MISSING}, ["searcher.metric: a required key is missing"]),
        ({"metric": "wow"}, ["metric wow does not imply whether smaller is better; set searcher.smaller_is_better"]),
        ({"max_length": MISSING}, ["searcher.max_length: a required key is missing"]),
        ({"max_length": {"epoch": 9}}, ["searcher.max_length.epoch", "did you mean 'epochs'?"]),
        ({"max_length": {"epochs": 0}}, ["max_length.epochs is 0: must be at least 1"]),
        ({"max_concurrent_trials": -1}, ["max_concurrent_trials is -1: must be at least 0"]),
        ({"divisor": 1}, ["searcher.divisor is 1: must be above 1"]),
        ({"divisor": float("nan")}, ["searcher.divisor is nan: give a finite number"]),
        ({"bracket_rungs": [3, 0]}, ["searcher.bracket_rungs.1 is 0: must be at least 1"]),
        ({"stop_once": 1}, ["searcher.stop_once is 1: give true or false"]),
        ({"name": "random", "divisor": 3}, ["divisor does not go with searcher random"]),
        ({"name": "grid"}, ["max_trials does not go with searcher grid"]),
    ],
)  # fmt: skip
def test_a_searcher_section_is_refused_by_path_value_and_rule(keys, words):
    config = with_keys(ADAPTIVE, **keys)
    for use in (lambda: create_searcher(config, {}), lambda: preview(config, {})):
        with pytest.raises(ConfigurationError) as refused:
            use()
        assert [word for word in words if word not in str(refused.value)] == []
        assert isinstance(refused.value, UsageError)
        assert isinstance(refused.value, ValueError)


RANGE = {"type": "double", "minval": 0, "maxval": 1}


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ([], ["hyperparameters is []", "give keys and their values"]),
        ({"optimizer": {"type": "adam", "lr": 1}}, ["hyperparameters.optimizer.type is 'adam'", "called type"]),
        ({"a": {**RANGE, "base": 3}}, ["hyperparameters.a.base is 3: there is no such key"]),
        ({"a": {**RANGE, "count": 0}}, ["hyperparameters.a.count is 0: must be at least 1"]),
        ({"a": {"type": "const"}}, ["hyperparameters.a.val: a required key is missing"]),
        ({"a": {"type": "categorical", "vals": []}}, ["hyperparameters.a.vals is []", "at least 1"]),
        ({"a": {**RANGE, "minval": "1e-4"}}, ["hyperparameters.a.minval is '1e-4': give a number"]),
        ({"a": {**RANGE, "maxval": float("inf")}}, ["hyperparameters.a: minval and maxval must be finite"]),
        ({"a": {"type": "log", "base": 1, "minval": 0, "maxval": 1}}, ["hyperparameters.a: base is 1"]),
        ({"a": {"type": "log", "base": -2, "minval": 0, "maxval": 1}}, ["hyperparameters.a.base is -2", "above 0"]),
        ({"a": {"type": "log", "minval": 1, "maxval": 512}}, ["a: 10 to the power of 512", "exponents"]),
        ({"a": {"type": "log", "minval": -999, "maxval": 1}}, ["hyperparameters.a: 10 to the power of -999"]),
        ({"g": {"a": {"minval": 0, "maxval": 1}}}, ["hyperparameters.g.a: has minval and no type"]),
        ({"a": {"val": 3}}, ["hyperparameters.a: has val and no type", "{type: const"]),
        ({"a": [1, dict(RANGE)]}, ["hyperparameters.a.1: a hyperparameter inside a list is not drawn"]),
        ({"a": datetime.date(2026, 1, 1)}, ["hyperparameters.a is datetime.date", "date is not a plain value"]),
        ({"a": {3: 4}}, ["hyperparameters.a.3 is 4: 3 is not a valid name"]),
        ({"global_batch_size": RANGE}, ["hyperparameters.global_batch_size: a batch size is a whole number"]),
        ({"global_batch_size": {"a": 1}}, ["hyperparameters.global_batch_size: a batch size is a whole number"]),
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


@pytest.mark.parametrize("seed", [1.5, None])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(InvalidArgumentError, match="seed="):
        create_searcher(with_keys(ADAPTIVE), {}, seed)


def test_defaults_are_those_of_determined_and_null_means_the_default():
    expected = SearcherSettings.model_validate(ADAPTIVE)
    assert (expected.mode, expected.divisor, expected.max_rungs) == ("standard", 4, 5)
    assert (expected.bracket_rungs, expected.max_concurrent_trials, expected.stop_once) == ([], 16, False)
    optional = set(SearcherSettings.model_fields) - set(ADAPTIVE)
    assert SearcherSettings.model_validate({**ADAPTIVE, **dict.fromkeys(optional)}) == expected
