"""Metrics over ranks and epochs: weighted means, and which value is better."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...errors import InvalidArgumentError, MissingMetricError

_MODES = ("min", "max")
# Words in names of metrics, Keras' and usual short ones, by the direction of improvement.
_SMALLER_IS_BETTER = (
    "loss", "logloss", "error", "entropy", "crossentropy", "divergence", "hinge", "poisson",
    "mse", "mae", "mape", "smape", "msle", "rmse", "rmsle",
)  # fmt: skip
_LARGER_IS_BETTER = (
    "acc", "accuracy", "auc", "precision", "recall", "f1", "score", "iou", "io_u", "true", "top_k",
    "similarity", "map",
)  # fmt: skip


@dataclass(frozen=True)
class Goal:
    """The metric that decides which epoch was the best.

    Attributes:
        metric: Its name as Keras logs it, such as `val_loss`.
        mode: `min` or `max`.
    """

    metric: str
    mode: str

    @classmethod
    def of(cls, metric: str, mode: str | None = None) -> Goal:
        """Makes a goal; without a mode the metric's name must imply the direction.

        Raises:
            InvalidArgumentError: If the mode is unknown, or the name does not imply it.
        """
        if mode is None:
            words = re.findall(r"[a-z0-9]+", metric.lower())
            # A number at the end of a word is a threshold (mAP50); in f1 it is part of the name.
            names = [f"_{'_'.join(said)}_" for said in (words, [word.rstrip("0123456789") for word in words])]
            smaller = any(f"_{known}_" in name for known in _SMALLER_IS_BETTER for name in names)
            larger = any(f"_{known}_" in name for known in _LARGER_IS_BETTER for name in names)
            if smaller == larger:
                raise InvalidArgumentError(
                    f"metric {metric!r} does not imply whether less is better; give mode='min' or 'max'"
                )
            mode = "min" if smaller else "max"
        if mode not in _MODES:
            raise InvalidArgumentError(f"mode is {mode!r}; it must be one of {', '.join(_MODES)}")
        return cls(metric, mode)

    def value_in(self, metrics: Mapping[str, float]) -> float:
        """Takes the goal's value from an epoch's metrics.

        Raises:
            MissingMetricError: If it is not among them.
        """
        if self.metric not in metrics:
            raise MissingMetricError(
                f"metric {self.metric!r} is not among this job's metrics ({', '.join(sorted(metrics))}); name one of "
                "these, or compile the model with it"
            )
        return float(metrics[self.metric])

    def is_better(self, value: float, best: float | None) -> bool:
        """Returns whether `value` is better than `best`; NaN is never better, and of equal values the first stays."""
        if math.isnan(value):
            return False
        return best is None or (value < best if self.mode == "min" else value > best)


@dataclass(frozen=True)
class RankMetrics:
    """The metrics of one rank.

    Attributes:
        rows: Rows behind the values.
        values: Value by name.
    """

    rows: float
    values: Mapping[str, float]


def mean_over_ranks(ranks: Iterable[RankMetrics]) -> dict[str, float]:
    """Averages metrics over ranks, weighted by their rows.

    Exact for metrics that are means over rows (losses, accuracies); for others (AUC, precision) the mean of the ranks'
    values. Ranks without rows do not count.
    """
    totals: dict[str, float] = {}
    rows: dict[str, float] = {}
    for measured in ranks:
        if measured.rows <= 0:
            continue
        for name, value in measured.values.items():
            totals[name] = totals.get(name, 0.0) + value * measured.rows
            rows[name] = rows.get(name, 0.0) + measured.rows
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
