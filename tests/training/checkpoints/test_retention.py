"""Rules of checkpoint retention."""

from __future__ import annotations

import math

import pytest

from lakelens.training.checkpoints.retention import CheckpointRecord, Retention, checkpoints_to_keep

pytestmark = pytest.mark.unit


def record(name: str, epoch: int, metric: float | None, trial: int = 0) -> CheckpointRecord:
    return CheckpointRecord(name, trial, epoch, metric)


A_RUN = [record("a", 1, 0.9), record("b", 2, 0.3), record("c", 3, 0.5), record("d", 4, 0.7)]


@pytest.mark.parametrize(
    ("records", "rules", "smaller_is_better", "kept"),
    [
        (A_RUN, Retention(), True, {"b", "d"}),
        (A_RUN, Retention(), False, {"a", "d"}),
        (A_RUN, Retention(0, 0, 0), True, set()),
        ([*A_RUN, record("e", 1, 0.1, 1), record("f", 2, 0.2, 1)], Retention(1, 0, 1), True, {"e", "d", "f"}),
        ([record("a", 1, math.nan), record("b", 2, 5.0), record("c", 3, None)], Retention(0, 1, 0), True, {"b"}),
        ([record("late", 2, 1.0), record("early", 1, 1.0)], Retention(0, 1, 0), False, {"early"}),
        ([record("a", 1, math.inf), record("b", 2, 2.0)], Retention(0, 1, 0), True, {"b"}),
    ],
    ids=["smallest", "largest", "none", "over trials", "without metric", "equal", "infinite"],
)
def test_the_best_and_the_latest_are_kept(records, rules, smaller_is_better, kept):
    assert checkpoints_to_keep(records, rules, smaller_is_better=smaller_is_better) == kept
