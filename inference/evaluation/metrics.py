"""Counts of right and wrong answers to metrics per class; pure arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...errors import PredictionsSchemaError
from ...training.trials.class_metrics import ClassMetrics, class_metrics


@dataclass(frozen=True)
class Evaluation:
    """How well a model's predictions meet the labels.

    Attributes:
        accuracy: Share of the labelled rows that are right, 0..1 (a row with an error is wrong); None without rows.
        rows: Labelled rows.
        errors: How many of those have an error instead of a prediction.
        unlabelled: Rows without a label; they count in none of the other numbers.
        classes: Metrics per class, by label number.
        confusion: int64 [classes, classes]; row: true class, column: predicted class, as ordered in `classes`.
    """

    accuracy: float | None
    rows: int
    errors: int
    unlabelled: int
    classes: list[ClassMetrics]
    confusion: npt.NDArray[np.int64]


def one_numbering(true_names: Mapping[int, str], predicted_names: Mapping[int, str]) -> dict[int, str]:
    """Joins the names of true and of predicted classes.

    Raises:
        PredictionsSchemaError: If one number is two classes, so that equal numbers are not equal classes.
    """
    for number in sorted(true_names.keys() & predicted_names.keys()):
        if true_names[number] != predicted_names[number]:
            raise PredictionsSchemaError(
                f"label {number} is {true_names[number]!r} in the image table and {predicted_names[number]!r} for the "
                "model: they number their classes differently, so that no two numbers can be compared. Score with a "
                "model that was trained on this table, or on one that numbers its classes alike"
            )
    return {**predicted_names, **true_names}


def evaluate_counts(
    counts: Mapping[tuple[int, int | None], int], names: Mapping[int, str], unlabelled: int = 0
) -> Evaluation:
    """Derives the metrics from how often each pair of label and prediction occurs.

    Args:
        counts: Rows by (label, prediction); a prediction of None is an error.
        names: Class names by number; a number without a name is called by its digits.
        unlabelled: Rows without a label.
    """
    predicted = {prediction for _, prediction in counts if prediction is not None}
    labels = sorted({label for label, _ in counts} | predicted | set(names))
    place = {label: index for index, label in enumerate(labels)}
    confusion = np.zeros((len(labels), len(labels)), dtype=np.int64)
    errors = np.zeros(len(labels), dtype=np.int64)
    for (label, prediction), count in counts.items():
        if prediction is None:
            errors[place[label]] += count
        else:
            confusion[place[label], place[prediction]] += count
    rows = int(confusion.sum() + errors.sum())
    classes = class_metrics(confusion, [names.get(label, str(label)) for label in labels], labels, errors.tolist())
    accuracy = float(np.trace(confusion)) / rows if rows else None
    return Evaluation(accuracy, rows, int(errors.sum()), unlabelled, classes, confusion)
