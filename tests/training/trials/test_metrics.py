"""Rules of metrics over ranks and epochs."""

from __future__ import annotations

import math

import pytest

from lakelens.errors import InvalidArgumentError, TrialError
from lakelens.training.trials.metrics import Goal, batches_of_rank, mean_over_ranks, rows_of_rank

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("metric", "mode"),
    [
        ("val_loss", "min"),
        ("loss", "min"),
        ("val_mean_squared_error", "min"),
        ("val_accuracy", "max"),
        ("val_AUC", "max"),
        ("val_sparse_top_k_categorical_accuracy", "max"),
        ("val_mape", "min"),
        ("mse", "min"),
        ("val_mae", "min"),
        ("msle", "min"),
        ("val_categorical_crossentropy", "min"),
        ("val_map", "max"),
        ("val_mAP50", "max"),
        ("mean_average_precision", "max"),
        ("val_f1", "max"),
        ("auc_1", "max"),
        ("mean_io_u", "max"),
        ("true_positives_2", "max"),
        ("val_false_positives_1", "min"),
        ("val_top_5_accuracy", "max"),
        ("top5_accuracy", "max"),
        ("val_map50_voc07", "max"),
    ],
)
def test_the_usual_metrics_tell_their_direction(metric, mode):
    assert Goal.of(metric) == Goal(metric, mode)


@pytest.mark.parametrize(
    "metric",
    [
        "val_mine", "my_loss_score", "heatmap", "glossary", "score", "val_score", "val_brier_score", "val_fid_score",
        "val_kl_score", "inverse_accuracy", "recall_error", "val_map_distance", "val_true_error", "accuracy_gap",
        "top_k", "", "val_",
    ],
)  # fmt: skip
def test_a_metric_that_is_not_in_the_lists_needs_a_mode(metric):
    with pytest.raises(InvalidArgumentError, match="give mode='min' or 'max'"):
        Goal.of(metric)
    assert Goal.of(metric, "max").mode == "max"


def test_an_unknown_mode_is_refused():
    with pytest.raises(InvalidArgumentError, match="mode is 'best'"):
        Goal.of("val_loss", "best")


@pytest.mark.parametrize(
    ("metric", "value", "best", "better"),
    [
        ("loss", 1.0, None, True),
        ("loss", 0.5, 1.0, True),
        ("loss", 1.0, 1.0, False),
        ("accuracy", 0.5, 0.4, True),
        ("accuracy", 0.5, 0.5, False),
        ("loss", math.nan, None, False),
        ("loss", math.nan, 3.0, False),
        ("loss", math.inf, None, True),
        ("loss", 3.0, math.inf, True),
    ],
)
def test_the_first_of_equal_values_stays_the_best_and_nan_beats_nothing(metric, value, best, better):
    assert Goal.of(metric).is_better(value, best) == better


def test_a_metric_that_is_missing_is_named_with_those_that_are_there():
    with pytest.raises(TrialError, match=r"'val_f1' is not among this job's metrics \(accuracy, loss\)"):
        Goal.of("val_f1").value_in({"loss": 1.0, "accuracy": 0.5})


def test_ranks_weigh_as_many_rows_as_they_measured_among_those_that_have_the_metric():
    ranks = [(3, {"a": 1.0}), (1, {"a": 5.0, "b": 7.0}), (0, {})]
    assert mean_over_ranks(ranks) == {"a": 2.0, "b": 7.0}


@pytest.mark.parametrize("rows", [0, 1, 2, 5, 8, 21])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_ranks_rows_are_those_of_the_order(rows, size):
    counted = [sum(1 for g in range(rows) if g % size == rank) for rank in range(size)]
    assert [rows_of_rank(rows, rank, size) for rank in range(size)] == counted


@pytest.mark.parametrize("rows", [0, 1, 5, 8, 21])
@pytest.mark.parametrize("global_batch_size", [1, 2, 4, 5])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_batches_without_a_row_of_the_rank_are_not_counted(rows, global_batch_size, size):
    for rank in range(size):
        batches = {g // global_batch_size for g in range(rows) if g % size == rank}
        assert batches_of_rank(rows, global_batch_size, rank, size) == len(batches)
