"""Rules of metrics over ranks and epochs."""

from __future__ import annotations

import math

import pytest

from lakelens.errors import InvalidArgumentError, TrialError
from lakelens.training.trials.metrics import Goal, batches_of_rank, mean_over_ranks, rows_of_rank

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("mode", "metrics"),
    [
        ("min", "val_loss loss val_mean_squared_error val_mape mse val_mae msle val_categorical_crossentropy"),
        ("min", "val_false_positives_1"),
        ("max", "val_accuracy val_AUC val_sparse_top_k_categorical_accuracy val_top_5_accuracy top5_accuracy"),
        ("max", "val_map val_mAP50 val_map50_voc07 mean_average_precision val_f1 auc_1 mean_io_u true_positives_2"),
    ],
)
def test_the_usual_metrics_tell_their_direction(mode, metrics):
    for metric in metrics.split():
        assert Goal.of(metric) == Goal(metric, mode), metric


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


def test_a_metric_that_is_missing_is_named_with_those_that_are_there_and_an_unknown_mode_is_refused():
    with pytest.raises(InvalidArgumentError, match="mode is 'best'"):
        Goal.of("val_loss", "best")
    with pytest.raises(TrialError, match=r"'val_f1' is not among this job's metrics \(accuracy, loss\)"):
        Goal.of("val_f1").value_in({"loss": 1.0, "accuracy": 0.5})


def test_ranks_weigh_as_many_rows_as_they_measured_among_those_that_have_the_metric():
    ranks = [(3, {"a": 1.0}), (1, {"a": 5.0, "b": 7.0}), (0, {})]
    assert mean_over_ranks(ranks) == {"a": 2.0, "b": 7.0}


@pytest.mark.parametrize("rows", [0, 1, 2, 5, 8, 21])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_ranks_rows_are_those_of_the_order_and_batches_without_one_are_not_counted(rows, size):
    for rank in range(size):
        own = [g for g in range(rows) if g % size == rank]
        assert rows_of_rank(rows, rank, size) == len(own)
        for global_batch_size in (1, 2, 4, 5):
            batches = {g // global_batch_size for g in own}
            assert batches_of_rank(rows, global_batch_size, rank, size) == len(batches)
