"""The plots of a training, as PNG bytes from plain numbers; pure. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import InvalidArgumentError
from ...figures import INK, dress_axis, empty_figure, name_axes, text_of, to_png

# Colour-blind safe (Okabe and Ito, 2008).
_TRAINING, _VALIDATION, _BEST = "#0072B2", "#D55E00", "#999999"
_GRID = "#e6e6e6"
# Largest number of classes with readable names and counts in the cells; more are drawn as colours only.
_NAMED_CLASSES, _COUNTED_CLASSES = 60, 25
_LABEL_LENGTH = 24
_MATRIX_DPI = 120  # large matrices stay below 2,000 pixels
_CURVES_IN_A_ROW = 3
_MOST_CURVES = 12


def draw_learning_curves(
    history: Mapping[str, Sequence[tuple[int, float]]], best_epoch: int | None = None, counted: str = "epoch"
) -> bytes:
    """Draws each metric over the epochs, of training and validation in one plot.

    Args:
        history: For each metric its (epoch, value) pairs; `val_x` goes with `x`. The first 12 metrics are drawn.
        best_epoch: The epoch of the best checkpoint; None if there is none.
        counted: The unit of the numbers, `epoch` or `step`.

    Returns:
        A PNG file.

    Raises:
        InvalidArgumentError: If no metric has a value.
        MissingDependencyError: If matplotlib is not installed.
    """
    names = list(dict.fromkeys(name.removeprefix("val_") for name, values in history.items() if values))[:_MOST_CURVES]
    if not names:
        raise InvalidArgumentError("history has no metric with a value to draw learning curves of")
    columns = min(_CURVES_IN_A_ROW, len(names))
    rows = -(-len(names) // columns)
    figure = empty_figure(4.2 * columns, 2.9 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis, name in zip(axes, names, strict=False):
        for key, label, colour in ((name, "training", _TRAINING), (f"val_{name}", "validation", _VALIDATION)):
            values = sorted(history.get(key, ()))
            if values:
                epochs, measured = zip(*values, strict=True)
                # One epoch is a point, which a line does not show.
                axis.plot(epochs, measured, color=colour, label=label, marker="o" if len(values) < 30 else "", ms=3)
        if best_epoch is not None:
            axis.axvline(best_epoch, color=_BEST, linewidth=1, linestyle=(0, (4, 3)), label=f"best {counted}", zorder=0)
        dress_axis(axis)
        name_axes(axis, counted, "", text_of(name, _LABEL_LENGTH))
        axis.xaxis.set_major_locator(_whole_numbers())
        axis.yaxis.get_major_formatter().set_useOffset(False)  # it would be written over the title
        axis.grid(color=_GRID, linewidth=0.8)
        axis.set_axisbelow(True)
    for axis in axes[len(names) :]:
        axis.remove()
    handles = {label: handle for axis in axes[: len(names)] for handle, label in zip(*_legend_of(axis), strict=True)}
    figure.legend(handles.values(), handles, loc="outside upper right", ncols=len(handles), frameon=False, fontsize=9)
    return to_png(figure)


def draw_confusion_matrix(confusion: npt.NDArray[np.int64], names: Sequence[str]) -> bytes:
    """Draws a confusion matrix: each line is coloured by shares of its true class, and cells show counts.

    Args:
        confusion: int64 [classes, classes], rows counted; row: true class, column: predicted class.
        names: Name of each class.

    Returns:
        A PNG file.

    Raises:
        InvalidArgumentError: If the matrix is empty or does not fit the names.
        MissingDependencyError: If matplotlib is not installed.
    """
    classes = len(names)
    if classes == 0 or confusion.shape != (classes, classes):
        raise InvalidArgumentError(f"confusion has shape {confusion.shape}; for {classes} names it must be square")
    support = confusion.sum(axis=1, keepdims=True)
    shares = confusion / np.maximum(support, 1)
    side = float(np.clip(0.42 * min(classes, _NAMED_CLASSES) + 2.2, 4.0, 14.0))
    figure = empty_figure(side + 0.9, side, _MATRIX_DPI)
    axis = figure.subplots()
    image = axis.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    bar = figure.colorbar(image, ax=axis, fraction=0.04, pad=0.02, format=lambda value, _: f"{value:.0%}")
    bar.ax.tick_params(colors=INK, labelsize=8, length=2)
    bar.outline.set_visible(False)
    dress_axis(axis)
    name_axes(axis, "predicted class", "true class", "rows by true and predicted class")
    axis.spines[:].set_visible(False)
    if classes <= _NAMED_CLASSES:
        shown = [text_of(name, _LABEL_LENGTH) for name in names]
        upright: dict[str, Any] = (
            {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if max(map(len, shown)) > 3 else {}
        )
        axis.set_xticks(range(classes), shown, fontsize=8, **upright)
        axis.set_yticks(range(classes), shown, fontsize=8)
    if classes <= _COUNTED_CLASSES:
        for i, j in np.argwhere(confusion):
            colour = "white" if shares[i, j] > 0.55 else INK
            axis.text(j, i, f"{confusion[i, j]:,}", ha="center", va="center", fontsize=8, color=colour)
    return to_png(figure)


def _legend_of(axis: Any) -> tuple[list[Any], list[str]]:
    handles, labels = axis.get_legend_handles_labels()
    return handles, labels


def _whole_numbers() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=6, integer=True, min_n_ticks=1)
