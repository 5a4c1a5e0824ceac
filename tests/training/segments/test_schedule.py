"""Rules of the boundaries of a training."""

from __future__ import annotations

import pytest

from lakelens.errors import ConfigurationError, InvalidArgumentError
from lakelens.training.configuration.experiment import ExperimentConfig
from lakelens.training.segments.job import Schedule
from lakelens.training.segments.verdicts import steps_between

pytestmark = pytest.mark.unit


def test_boundaries_of_a_training_of_two_and_a_half_epochs():
    schedule = Schedule(
        steps_per_epoch=6, length=15, validation_period=4, checkpoint_period=5, validations=frozenset({7})
    )
    steps = range(1, 16)
    assert [step for step in steps if schedule.ends_epoch(step)] == [6, 12]
    assert [step for step in steps if schedule.validates(step)] == [4, 7, 8, 12, 15]
    assert [step for step in steps if schedule.writes(step)] == [5, 10, 15]
    assert [schedule.recorded_as(step) for step in (4, 12)] == [4, 12]


def test_metrics_are_recorded_by_epochs_where_every_validation_ends_one():
    schedule = Schedule(steps_per_epoch=6, length=24, validation_period=12)
    assert [schedule.recorded_as(step) for step in (6, 12, 24)] == [1, 2, 4]


def test_a_period_that_is_never_reached_is_refused_also_in_another_unit():
    keys = {"data": {"table": "t"}, "hyperparameters": {"global_batch_size": 16}}
    keys["searcher"] = {"max_length": {"batches": 15}}
    for more, words in (
        ({"min_validation_period": {"epochs": 3}}, r"min_validation_period \(3 epochs\) is 18 steps"),
        ({"optimizations": {"warmup_epochs": 3.0}}, r"warmup_epochs \(3\) is 18 steps and .* \(15 batches\) is 15"),
        ({"optimizations": {"aggregation_frequency": 16}}, "is 16 steps .* no gradient would ever be applied"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            Schedule.of(ExperimentConfig.read(keys | more), 6)
    # An epoch is the default, and no demand of a training that is shorter.
    shorter = ExperimentConfig.read(keys | {"searcher": {"max_length": {"records": 33}}})
    assert Schedule.of(shorter, 6) == Schedule(6, 3, 6)
    assert Schedule.of(shorter, 6).epochs == 1


@pytest.mark.parametrize("name", ["steps_per_epoch", "length", "validation_period", "checkpoint_period"])
def test_a_period_of_no_steps_is_refused(name):
    with pytest.raises(InvalidArgumentError, match=f"{name} is 0 steps"):
        Schedule(**({"steps_per_epoch": 1, "length": 1, "validation_period": 1} | {name: 0}))


def test_ranks_compare_every_half_second_whatever_a_step_takes():
    assert [steps_between(seconds) for seconds in (3.0, 0.5, 0.1, 0.001, 0.0)] == [1, 1, 5, 500, 10_000]
