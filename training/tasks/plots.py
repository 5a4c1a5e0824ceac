"""The plots of an evaluation, as PNG bytes: confusion matrix and precision over recall. They need matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ...errors import InvalidArgumentError
from ...figures import INK, dress_axis, empty_figure, name_axes, text_of, to_png
from .average_precision import PrecisionRecall
from .class_metrics import csv_text, number_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Points of a class in the table and the plot; more look the same.
_POINTS = 200
_MOST_CLASSES = 20
_LABEL_LENGTH = 24
# Largest number of classes with readable names and counts in the cells; more are drawn as colours only.
_NAMED_CLASSES, _COUNTED_CLASSES = 60, 25
_UPRIGHT = 60  # characters next to each other
_MATRIX_DPI = 120  # large matrices stay below 2,000 pixels
_CURVE, _DOT = "#0072B2", "#D55E00"


def draw_confusion_matrix(confusion: npt.NDArray[np.int64], names: Sequence[str]) -> bytes:
    """Draws a confusion matrix: each line is coloured by shares of its true class, and cells show counts."""
    classes = len(names)
    if classes == 0 or confusion.shape != (classes, classes):
        raise InvalidArgumentError(f"confusion has shape {confusion.shape}; for {classes} names it must be square")
    support = confusion.sum(axis=1, keepdims=True)
    shares = confusion / np.maximum(support, 1)
    is_small = classes <= _COUNTED_CLASSES
    side = float(np.clip((0.34 if is_small else 0.42) * min(classes, _NAMED_CLASSES) + 2.2, 2.8, 14.0))
    figure = empty_figure(9.0, side) if is_small else empty_figure(side + 0.9, side, _MATRIX_DPI)
    axis = figure.subplots()
    # The cells of a small matrix are as wide as the page allows.
    aspect: Literal["auto", "equal"] = "auto" if is_small else "equal"
    image = axis.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest", aspect=aspect)
    bar = figure.colorbar(image, ax=axis, fraction=0.03, pad=0.02, format=lambda value, _: f"{value:.0%}")
    bar.ax.tick_params(colors=INK, labelsize=8, length=2)
    bar.outline.set_visible(False)
    dress_axis(axis)
    name_axes(axis, "predicted class", "true class", "rows by true and predicted class")
    axis.spines[:].set_visible(False)
    if classes <= _NAMED_CLASSES:
        shown = [text_of(name, _LABEL_LENGTH) for name in names]
        turned: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
        is_short = max(map(len, shown)) * classes <= _UPRIGHT
        axis.set_xticks(range(classes), shown, fontsize=8, **({} if is_short else turned))
        axis.set_yticks(range(classes), shown, fontsize=8)
    if is_small:
        for i, j in np.argwhere(confusion):
            colour = "white" if shares[i, j] > 0.55 else INK
            axis.text(j, i, f"{confusion[i, j]:,}", ha="center", va="center", fontsize=8, color=colour)
    return to_png(figure)


def curves_csv(curves: Mapping[str, PrecisionRecall]) -> str:
    """Writes the curves at an overlap of 0.5 as CSV: class, score, recall, precision; at most 200 points of a class."""
    rows: list[Sequence[str]] = [("class", "score", "recall", "precision")]
    for name, curve in curves.items():
        for i in _some(len(curve.scores)):
            rows.append((name, *(number_text(values[i]) for values in (curve.scores, curve.recall, curve.precision))))
    return csv_text(rows)


def draw_precision_recall(curves: Mapping[str, PrecisionRecall], least_score: float | None = None) -> bytes:
    """Draws the curve of each class at an overlap of 0.5; a dot marks a score on each curve."""
    return to_png(precision_recall_figure(curves, least_score))


def precision_recall_figure(curves: Mapping[str, PrecisionRecall], least_score: float | None = None) -> Figure:
    """Lays out the plot of `draw_precision_recall`: axes for each class, so that no curve hides another one."""
    drawn = sorted(curves.items(), key=lambda named: named[1].area)[:_MOST_CLASSES]
    columns = min(4, max(2, len(drawn)))
    rows = max(1, -(-len(drawn) // columns))
    figure = empty_figure(9.0, 9.0 / columns * 0.8 * rows + 0.7)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axis in grid.flat[len(drawn) :]:
        axis.axis("off")
    for axis, (name, curve) in zip(grid.flat, drawn, strict=False):
        dress_axis(axis)
        axis.grid(color="#e6e6e6", linewidth=0.8)
        name_axes(axis, "", "", f"{text_of(name, _LABEL_LENGTH)}  {curve.area:.2f}")
        places = _some(len(curve.scores))
        if places:  # from the first detection's precision on
            steps = ([0.0, *curve.recall[places]], [curve.precision[0], *curve.precision[places]])
            axis.plot(*steps, color=_CURVE, linewidth=1.6)
        taken = 0 if least_score is None else int((curve.scores >= least_score).sum())
        if taken:
            axis.plot(curve.recall[taken - 1], curve.precision[taken - 1], "o", color=_DOT, markersize=5, clip_on=False)
    grid[0, 0].set_xlim(0, 1.02)
    grid[0, 0].set_ylim(0, 1.04)
    few = f"; the {len(drawn)} of {len(curves)} classes of the lowest" if len(drawn) < len(curves) else ""
    figure.supxlabel("recall", fontsize=9, color=INK)
    figure.supylabel("precision", fontsize=9, color=INK)
    figure.suptitle(f"at an overlap of 0.5, with average precision{few}", x=0.01, ha="left", fontsize=10, color=INK)
    return figure


def _some(count: int) -> list[int]:
    return np.unique(np.linspace(0, count - 1, min(count, _POINTS)).round().astype(int)).tolist() if count else []
