"""Precision, recall and F1 per class from a confusion matrix; pure arithmetic, and as CSV tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True)
class ClassMetrics:
    """The metrics of one class."""

    name: str  # The class
    label: int  # Its number
    support: int  # Rows whose true class it is, rows with an error included
    recall: float | None  # Share of those predicted correctly, 0..1; None without rows
    precision: float | None  # Share of correct rows among those predicted as this class, 0..1; None without such rows
    f1: float | None  # Harmonic mean of both, 0 if no row is predicted correctly; None without rows


def class_metrics(
    confusion: npt.NDArray[np.int64],
    names: Sequence[str],
    labels: Sequence[int] | None = None,
    errors: Sequence[int] | None = None,
) -> list[ClassMetrics]:
    """Derives the metrics of each class."""
    if confusion.shape != (len(names), len(names)):
        raise InvalidArgumentError(
            f"confusion has shape {confusion.shape} and there are {len(names)} names; it must be [classes, classes]"
        )
    numbers = range(len(names)) if labels is None else labels
    missed = [0] * len(names) if errors is None else errors
    found = []
    for index, (name, label, none) in enumerate(zip(names, numbers, missed, strict=True)):
        right, given = int(confusion[index, index]), int(confusion[:, index].sum())
        support = int(confusion[index].sum()) + int(none)
        recall = right / support if support else None
        f1 = 2 * right / (support + given) if support else None
        found.append(ClassMetrics(name, int(label), support, recall, right / given if given else None, f1))
    return found


def per_class_csv(classes: Sequence[ClassMetrics]) -> str:
    """Writes the metrics of each class as CSV; missing metrics are empty."""
    rows: list[Sequence[str]] = [("class", "label", "support", "precision", "recall", "f1")]
    rows += [(c.name, str(c.label), str(c.support), *map(number_text, (c.precision, c.recall, c.f1))) for c in classes]
    return csv_text(rows)


def confusion_csv(confusion: npt.NDArray[np.int64], names: Sequence[str]) -> str:
    """Writes a confusion matrix as CSV, with a line per true class and a column per predicted class."""
    rows: list[Sequence[str]] = [("true class", *names)]
    rows += [(name, *map(str, counts)) for name, counts in zip(names, confusion.tolist(), strict=True)]
    return csv_text(rows)


def number_text(value: float | None) -> str:
    """Writes a number with six digits; a missing one is empty."""
    return "" if value is None else f"{value:.6g}"


def csv_text(rows: Sequence[Sequence[str]]) -> str:
    """Writes rows as CSV, with a line feed after each."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
