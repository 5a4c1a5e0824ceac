"""Rules of checkpoint retention."""

from __future__ import annotations

import math

import pytest

from lakelens.errors import InvalidArgumentError
from lakelens.training.checkpoints.retention import CheckpointRecord, Retention, checkpoints_to_keep

pytestmark = pytest.mark.unit


def record(name: str, epoch: int, metric: float | None, trial: int = 0) -> CheckpointRecord:
    return CheckpointRecord(name, trial, epoch, metric)


A_RUN = [record("a", 1, 0.9), record("b", 2, 0.3), record("c", 3, 0.5), record("d", 4, 0.7)]


def test_the_best_and_the_latest_of_a_trial_are_kept_by_default():
    assert checkpoints_to_keep(A_RUN, Retention(), smaller_is_better=True) == {"b", "d"}
    assert checkpoints_to_keep(A_RUN, Retention(), smaller_is_better=False) == {"a", "d"}


def test_rules_add_up_over_trials():
    records = [*A_RUN, record("e", 1, 0.1, trial=1), record("f", 2, 0.2, trial=1)]
    kept = checkpoints_to_keep(records, Retention(1, 0, 1), smaller_is_better=True)
    assert kept == {"e", "d", "f"}


@pytest.mark.parametrize("metric", [None, math.nan])
def test_a_checkpoint_without_a_metric_is_never_the_best(metric):
    records = [record("a", 1, metric), record("b", 2, 5.0), record("c", 3, metric)]
    assert checkpoints_to_keep(records, Retention(0, 1, 0), smaller_is_better=True) == {"b"}


def test_of_equal_metrics_the_earlier_is_the_best():
    records = [record("late", 2, 1.0), record("early", 1, 1.0)]
    assert checkpoints_to_keep(records, Retention(0, 1, 0), smaller_is_better=False) == {"early"}


def test_infinite_metrics_are_ordered_like_numbers():
    records = [record("a", 1, math.inf), record("b", 2, 2.0)]
    assert checkpoints_to_keep(records, Retention(0, 1, 0), smaller_is_better=True) == {"b"}


def test_nothing_is_kept_when_no_rule_asks_for_it():
    assert checkpoints_to_keep(A_RUN, Retention(0, 0, 0), smaller_is_better=True) == set()


def test_a_negative_number_is_refused():
    with pytest.raises(InvalidArgumentError, match="save_trial_best is -1"):
        Retention(save_trial_best=-1)
