"""Precision over recall of each class, as CSV and as a plot; pure. The plot needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...figures import dress_axis, empty_figure, name_axes, text_of, to_png
from .average_precision import PrecisionRecall
from .class_metrics import csv_text, number_text

# Points of a class in the table and the plot; more look the same.
_POINTS = 200
_NAMED_CLASSES = 20
_LABEL_LENGTH = 24


def curves_csv(curves: Mapping[str, PrecisionRecall]) -> str:
    """Writes the curves at an overlap of 0.5 as CSV: class, score, recall, precision; at most 200 points of a class."""
    rows: list[Sequence[str]] = [("class", "score", "recall", "precision")]
    for name, curve in curves.items():
        for i in _some(len(curve.scores)):
            rows.append((name, *(number_text(values[i]) for values in (curve.scores, curve.recall, curve.precision))))
    return csv_text(rows)


def draw_precision_recall(curves: Mapping[str, PrecisionRecall]) -> bytes:
    """Draws the curves of all classes at an overlap of 0.5; names up to 20 of them."""
    figure = empty_figure(7.0, 4.6)
    axis = figure.subplots()
    for name, curve in curves.items():
        places = _some(len(curve.scores))
        label = f"{text_of(name, _LABEL_LENGTH)} {curve.area:.2f}"
        axis.plot(curve.recall[places], curve.precision[places], label=label, linewidth=1.2)
    dress_axis(axis)
    name_axes(axis, "recall", "precision", "precision over recall at an overlap of 0.5, with average precision")
    axis.set_xlim(0, 1)
    axis.set_ylim(0, 1.02)
    if len(curves) <= _NAMED_CLASSES:
        figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return to_png(figure)


def _some(count: int) -> list[int]:
    return np.unique(np.linspace(0, count - 1, min(count, _POINTS)).round().astype(int)).tolist() if count else []
