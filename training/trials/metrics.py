"""Metrics over ranks and epochs: weighted means, and which value is better."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import InvalidArgumentError, MissingMetricError
from ...options import closest

_MODES = ("min", "max")
# The names of metrics with a known direction: Keras' metrics, losses and short names, and those of the tasks. A
# name that only contains one of them says nothing: of `brier_score` less is better.
_SMALLER_IS_BETTER = frozenset((
    "loss", "error", "error_rate", "log_loss", "logloss", "cross_entropy", "crossentropy",
    "binary_crossentropy", "categorical_crossentropy", "sparse_categorical_crossentropy",
    "binary_focal_crossentropy", "categorical_focal_crossentropy",
    "kl_divergence", "kullback_leibler_divergence", "kld", "poisson", "log_cosh", "logcosh", "huber",
    "hinge", "squared_hinge", "categorical_hinge",
    "mean_squared_error", "mean_absolute_error", "mean_absolute_percentage_error",
    "mean_squared_logarithmic_error", "root_mean_squared_error",
    "mse", "mae", "mape", "smape", "msle", "rmse", "rmsle", "false_positives", "false_negatives",
))  # fmt: skip
_LARGER_IS_BETTER = frozenset((
    "acc", "accuracy", "binary_accuracy", "categorical_accuracy", "sparse_categorical_accuracy",
    "balanced_accuracy", "top_k_accuracy", "top_k_categorical_accuracy", "sparse_top_k_categorical_accuracy",
    "auc", "roc_auc", "pr_auc", "auroc", "auprc", "precision", "recall", "average_precision",
    "f1", "f1_score", "fbeta_score", "macro_f1", "micro_f1", "true_positives", "true_negatives",
    "sensitivity", "specificity", "sensitivity_at_specificity", "specificity_at_sensitivity",
    "precision_at_recall", "recall_at_precision",
    "iou", "mean_iou", "io_u", "mean_io_u", "binary_io_u", "one_hot_io_u", "one_hot_mean_io_u",
    "cosine_similarity", "r2_score", "pearson_correlation", "concordance_correlation",
    "map", "map50", "map50_voc07", "map75", "mean_average_precision", "recall50",
))  # fmt: skip
_TOP = re.compile(r"(?<=top)_?\d+(?=_|$)")
# Keras counts metrics of one name: `auc`, `auc_1`.
_COUNTED = re.compile(r"_\d+$")


def near_metric(metric: str) -> str:
    """Asks in parentheses for the known metric that is nearest to a name; Determined's is `validation_loss`."""
    known = _SMALLER_IS_BETTER | _LARGER_IS_BETTER
    name = re.sub("^(validation|valid|val)_", "", metric)
    near = closest(name, known)
    return f" (did you mean {near if name == metric else f'val_{near}'!r}?)" if near else ""


@dataclass(frozen=True)
class Goal:
    """The metric that decides which epoch was the best."""

    metric: str  # Its name as Keras logs it, such as `val_loss`
    mode: str  # `min` or `max`

    @classmethod
    def of(cls, metric: str, mode: str | None = None) -> Goal:
        """Makes a goal; without a mode the metric must be one with a known direction."""
        mode = _known_mode(metric) if mode is None else mode
        if mode is None:
            raise InvalidArgumentError(
                f"metric {metric!r}{near_metric(metric)} does not imply whether less is better; give mode='min' or "
                "'max'"
            )
        if mode not in _MODES:
            raise InvalidArgumentError(f"mode is {mode!r}; it must be one of {', '.join(_MODES)}")
        return cls(metric, mode)

    def value_in(self, metrics: Mapping[str, float]) -> float:
        """Takes the goal's value from an epoch's metrics."""
        if self.metric not in metrics:
            raise MissingMetricError(
                f"metric {self.metric!r} is not among this job's metrics ({', '.join(sorted(metrics))}); name one of "
                "these, or compile the model with it"
            )
        return float(metrics[self.metric])

    def found_in(self, metrics: Mapping[str, Any]) -> float | None:
        """Takes the goal's value from the metrics of a checkpoint, where NaN is stored as its name; None without it."""
        value = metrics.get(self.metric)
        return None if value is None else float(value)

    def is_better(self, value: float, best: float | None) -> bool:
        """Returns whether `value` is better than `best`; NaN is never better, and of equal values the first stays."""
        if math.isnan(value):
            return False
        return best is None or (value < best if self.mode == "min" else value > best)


def _known_mode(metric: str) -> str | None:
    """Returns the direction of a metric whose name is in the lists, with or without `val_`."""
    name = metric.lower().removeprefix("val_")
    for known in (name, _COUNTED.sub("", name), _TOP.sub("_k", name)):
        if known in _SMALLER_IS_BETTER:
            return "min"
        if known in _LARGER_IS_BETTER:
            return "max"
    return None


def mean_over_ranks(ranks: Iterable[tuple[float, Mapping[str, float]]]) -> dict[str, float]:
    """Averages metrics over ranks, of which each has its rows and its values by name, weighted by the rows.

    Exact for metrics that are means over rows (losses, accuracies); for others (AUC, precision) the mean of the ranks'
    values. Ranks without rows do not count.
    """
    totals: dict[str, float] = {}
    rows: dict[str, float] = {}
    for count, values in ranks:
        if count <= 0:
            continue
        for name, value in values.items():
            totals[name] = totals.get(name, 0.0) + value * count
            rows[name] = rows.get(name, 0.0) + count
    return {name: total / rows[name] for name, total in totals.items()}


def batches_of_rank(rows: int, global_batch_size: int, rank: int, size: int) -> int:
    """Counts the global batches of an epoch in which a rank has at least one row."""
    count = 0
    for first in range(0, rows, global_batch_size):
        last = min(first + global_batch_size, rows)
        count += rows_of_rank(last, rank, size) > rows_of_rank(first, rank, size)
    return count


def rows_of_rank(rows: int, rank: int, size: int) -> int:
    """Counts the rows that a rank feeds in an epoch: it takes row g of the epoch's order when g % size == rank."""
    return (rows - rank + size - 1) // size
