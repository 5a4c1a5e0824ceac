"""Counts of right and wrong answers to metrics: per class, of the ranking and of the calibration; pure arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...errors import MissingDependencyError, PredictionsSchemaError
from ...results import ReadableResult
from ...training.tasks.class_metrics import ClassMetrics
from ..scoring.mismatch import other_names

# Equal parts of 0..1, as in Guo et al., On Calibration of Modern Neural Networks (2017).
CALIBRATION_BINS = 15
TOP_K = (1, 3, 5)
# The metrics that are one number, if the evaluation has a value of them.
SCORES = ("accuracy", "balanced_accuracy", "macro_f1", *(f"top_{k}_accuracy" for k in TOP_K if k > 1), "ece")
# A row without a prediction; no class has this number.
_NO_CLASS = -1


class AnswerGroup(NamedTuple):
    """Rows with the same label and the same answer.

    Attributes:
        label: Number of the true class.
        prediction: Number of the most probable class; None for rows with an error.
        true_rank: How many classes are more probable than the true one; None where the model does not know it.
        bin: Which of the `CALIBRATION_BINS` the probability of the answer falls into; None without an answer.
        rows: How many.
        confidence: Sum of the probabilities of the answers.
    """

    label: int
    prediction: int | None
    true_rank: int | None = None
    bin: int | None = None
    rows: int = 1
    confidence: float = 0.0


@dataclass(frozen=True)
class CalibrationBin:
    """Answers of about the same probability.

    Attributes:
        rows: How many.
        confidence: Mean probability, 0..1.
        accuracy: Share that is right, 0..1.
    """

    rows: int
    confidence: float
    accuracy: float


@dataclass(frozen=True, repr=False)
class ModelMetrics(ReadableResult):
    """How well a model's predictions meet the labels.

    Attributes:
        accuracy: Share of the labelled rows that are right, 0..1 (a row with an error is wrong); None without rows.
        rows: Labelled rows.
        errors: How many of those have an error instead of a prediction.
        unlabelled: Rows without a label; they count in none of the other numbers.
        classes: Metrics per class, by label number.
        confusion: int64 [classes, classes]; row: true class, column: predicted class, as ordered in `classes`.
        balanced_accuracy: Mean recall of the classes that have rows; None without rows.
        macro_f1: Mean F1 of the classes that have rows; None without rows.
        top_k: For each k the share of rows whose true class is among the k most probable.
        ece: Expected calibration error: mean distance of probability and accuracy over the bins, weighted by rows; None
            without an answer.
        calibration: The bins that have answers, from the least probable.
    """

    accuracy: float | None
    rows: int
    errors: int
    unlabelled: int
    classes: list[ClassMetrics]
    confusion: npt.NDArray[np.int64] = field(repr=False)
    balanced_accuracy: float | None = None
    macro_f1: float | None = None
    top_k: dict[int, float] = field(default_factory=dict)
    ece: float | None = None
    calibration: list[CalibrationBin] = field(default_factory=list, repr=False)

    @property
    def scores(self) -> dict[str, float]:
        """The metrics that are one number, those without a value left out."""
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
    """Joins the names of true and of predicted classes; a class that was renamed has both, as `lion (cat)`.

    Args:
        true_names: Names by number in the image table.
        predicted_names: Names by number to the model.
        is_own: Whether the model was trained on this table, so that numbers are the same classes (`other_names`).

    Raises:
        PredictionsSchemaError: If one number is two classes, so that equal numbers are not equal classes.
    """
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


def evaluate_groups(groups: Sequence[AnswerGroup], names: Mapping[int, str], unlabelled: int = 0) -> ModelMetrics:
    """Derives the metrics from groups of rows.

    Args:
        groups: The labelled rows.
        names: Class names by number; a number without a name is called by its digits.
        unlabelled: Rows without a label.

    Raises:
        MissingDependencyError: If scikit-learn is not installed.
    """
    rows = sum(group.rows for group in groups)
    labels = sorted({group.label for group in groups} | {g.prediction for g in groups if g.prediction is not None})
    labels = sorted({*labels, *names})
    classes, confusion = _per_class(groups, labels, [names.get(label, str(label)) for label in labels])
    with_rows = [one for one in classes if one.support]
    ece, calibration = _calibration(groups)
    return ModelMetrics(
        accuracy=sum(group.rows for group in groups if group.label == group.prediction) / rows if rows else None,
        rows=rows,
        errors=sum(group.rows for group in groups if group.prediction is None),
        unlabelled=unlabelled,
        classes=classes,
        confusion=confusion,
        balanced_accuracy=_mean([one.recall for one in with_rows]),
        macro_f1=_mean([one.f1 for one in with_rows]),
        top_k=_top_k(groups, rows, len(labels)),
        ece=ece,
        calibration=calibration,
    )


def _per_class(
    groups: Sequence[AnswerGroup], labels: Sequence[int], names: Sequence[str]
) -> tuple[list[ClassMetrics], npt.NDArray[np.int64]]:
    if not groups:
        empty = [ClassMetrics(name, label, 0, None, None, None) for name, label in zip(names, labels, strict=True)]
        return empty, np.zeros((len(labels), len(labels)), dtype=np.int64)
    try:
        from sklearn.metrics import confusion_matrix, precision_recall_fscore_support
    except ImportError as error:
        raise MissingDependencyError("metrics need scikit-learn: pip install 'lakelens[search]'") from error
    true = [group.label for group in groups]
    predicted = [_NO_CLASS if group.prediction is None else group.prediction for group in groups]
    weights = [group.rows for group in groups]
    counted = confusion_matrix(true, predicted, labels=labels, sample_weight=weights).astype(np.int64)
    columns = precision_recall_fscore_support(
        true, predicted, labels=labels, sample_weight=weights, zero_division=np.nan
    )
    metrics = [
        ClassMetrics(name, label, round(float(support)), _number(recall), _number(precision), _number(f1))
        for name, label, precision, recall, f1, support in zip(names, labels, *columns, strict=True)
    ]
    return metrics, counted


def _top_k(groups: Sequence[AnswerGroup], rows: int, classes: int) -> dict[int, float]:
    """Counts the rows whose true class is among the first k; k of all classes or more would always be 1."""
    if not rows or all(group.true_rank is None for group in groups):
        return {}
    ranked = [(group.true_rank, group.rows) for group in groups if group.true_rank is not None]
    return {k: sum(count for rank, count in ranked if rank < k) / rows for k in TOP_K if k == 1 or k < classes}


def _calibration(groups: Sequence[AnswerGroup]) -> tuple[float | None, list[CalibrationBin]]:
    answered = [group for group in groups if group.bin is not None]
    if not answered:
        return None, []
    places = np.array([group.bin for group in answered])
    weights: dict[str, list[float]] = {
        "rows": [group.rows for group in answered],
        "confidence": [group.confidence for group in answered],
        "right": [group.rows * (group.label == group.prediction) for group in answered],
    }
    sums = {name: np.bincount(places, values, CALIBRATION_BINS) for name, values in weights.items()}
    bins = [
        CalibrationBin(int(rows), float(confidence / rows), float(right / rows))
        for rows, confidence, right in zip(*sums.values(), strict=True)
        if rows
    ]
    distance = float(np.abs(sums["right"] - sums["confidence"]).sum() / sums["rows"].sum())
    return distance, bins


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
