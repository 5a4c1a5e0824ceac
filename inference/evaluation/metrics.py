"""Metrics from counts of right and wrong answers: per class, of the ranking and of the calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...errors import PredictionsSchemaError
from ...training.tasks.class_metrics import ClassMetrics, class_metrics
from ..scoring.mismatch import other_names
from .result import TaskMetrics

if TYPE_CHECKING:
    import pandas as pd

# Equal parts of 0..1, as in Guo et al., On Calibration of Modern Neural Networks (2017).
CALIBRATION_BINS = 15
TOP_K = (1, 3, 5)
# The metrics that are a single number.
SCORES = ("accuracy", "balanced_accuracy", "macro_f1", *(f"top_{k}_accuracy" for k in TOP_K if k > 1), "ece")


@dataclass(frozen=True, repr=False)
class ModelMetrics(TaskMetrics):
    """How well a model's predictions match the labels."""

    # Share of correct labelled rows, 0..1 (a row with an error counts as wrong); None without rows
    accuracy: float | None
    rows: int  # Labelled rows
    errors: int  # How many of those have an error instead of a prediction
    unlabelled: int  # Rows without a label; no other number counts them
    classes: list[ClassMetrics]  # Metrics per class, by label number
    # int64 [classes, classes]; row: true class, column: predicted class, as ordered in `classes`
    confusion: npt.NDArray[np.int64] = field(repr=False)
    balanced_accuracy: float | None = None  # Mean recall of the classes that have rows; None without rows
    macro_f1: float | None = None  # Mean F1 of the classes that have rows; None without rows
    # For each k the share of rows whose true class is among the k most probable
    top_k: dict[int, float] = field(default_factory=dict)
    # Expected calibration error: mean distance of probability and accuracy over the bins, weighted by rows; None
    # without an answer
    ece: float | None = None
    # A row for each bin with answers, from the least probable: `rows`, and their mean probability (`confidence`) and
    # share of right answers (`accuracy`), 0..1; None without an answer
    calibration: pd.DataFrame | None = field(default=None, repr=False, compare=False)

    @property
    def scores(self) -> dict[str, float]:
        """The metrics that are a single number and have a value."""
        named = {
            "accuracy": self.accuracy,
            "balanced_accuracy": self.balanced_accuracy,
            "macro_f1": self.macro_f1,
            **{f"top_{k}_accuracy": value for k, value in self.top_k.items() if k > 1},
            "ece": self.ece,
        }
        return {name: value for name, value in named.items() if value is not None}


def one_numbering(
    true_names: Mapping[int, str], predicted_names: Mapping[int, str], *, is_own: bool = False
) -> dict[int, str]:
    """Joins the names of true and of predicted classes; a renamed class has both, as `lion (cat)`."""
    other = other_names(true_names, predicted_names, is_own=is_own)
    if other:
        number = other[0]
        raise PredictionsSchemaError(
            f"label {number} is {true_names[number]!r} in the image table and {predicted_names[number]!r} for the "
            "model: they number their classes differently, so that no two numbers can be compared. Score with a "
            "model that was trained on this table, or on one that numbers its classes alike"
        )
    names = {**predicted_names, **true_names}
    return {
        number: name if predicted_names.get(number, name) == name else f"{name} ({predicted_names[number]})"
        for number, name in names.items()
    }


def measure(counts: pd.DataFrame, names: Mapping[int, str], unlabelled: int = 0) -> ModelMetrics:
    """Derives the metrics from counts of labelled rows."""
    rows = int(counts["rows"].sum())
    answered = counts.dropna(subset=["prediction"])
    labels = sorted({*counts["label"].astype(int), *answered["prediction"].astype(int), *names})
    classes, confusion = per_class(counts, labels, names)
    with_rows = [one for one in classes if one.support]
    ece, calibration = _calibration(counts)
    return ModelMetrics(
        accuracy=float(_right(counts).sum() / rows) if rows else None,
        rows=rows,
        errors=rows - int(answered["rows"].sum()),
        unlabelled=unlabelled,
        classes=classes,
        confusion=confusion,
        balanced_accuracy=_mean([one.recall for one in with_rows]),
        macro_f1=_mean([one.f1 for one in with_rows]),
        top_k=_top_k(counts, rows, len(labels)),
        ece=ece,
        calibration=calibration,
    )


def _right(counts: pd.DataFrame) -> pd.Series[int]:
    return counts["rows"] * (counts["label"] == counts["prediction"])


def per_class(
    counts: pd.DataFrame, labels: Sequence[int], names: Mapping[int, str]
) -> tuple[list[ClassMetrics], npt.NDArray[np.int64]]:
    """Derives the metrics of each class, and the confusion matrix: int64 [classes, classes]."""
    places = {label: place for place, label in enumerate(labels)}
    true = counts["label"].map(places).to_numpy(int)
    predicted = counts["prediction"].map(places).fillna(len(labels)).to_numpy(int)  # errors have the last column
    table = np.zeros((len(labels), len(labels) + 1), np.int64)
    np.add.at(table, (true, predicted), counts["rows"].to_numpy(int))
    confusion, errors = table[:, :-1], table[:, -1].tolist()
    return class_metrics(confusion, [names.get(label, str(label)) for label in labels], labels, errors), confusion


def _top_k(counts: pd.DataFrame, rows: int, classes: int) -> dict[int, float]:
    """Counts the rows whose true class is among the first k; k of all classes or more would always be 1."""
    ranked = counts.dropna(subset=["true_rank"])
    if ranked.empty:
        return {}
    found = {k: ranked.loc[ranked["true_rank"] < k, "rows"].sum() for k in TOP_K if k == 1 or k < classes}
    return {k: float(count / rows) for k, count in found.items()}


def _calibration(counts: pd.DataFrame) -> tuple[float | None, pd.DataFrame | None]:
    answered = counts.assign(right=_right(counts)).dropna(subset=["bin"])
    if answered.empty:
        return None, None
    sums = answered.groupby("bin")[["rows", "confidence", "right"]].sum()
    means = sums[["confidence", "right"]].div(sums["rows"], axis=0).rename(columns={"right": "accuracy"})
    return float((sums["right"] - sums["confidence"]).abs().sum() / sums["rows"].sum()), sums[["rows"]].join(means)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
