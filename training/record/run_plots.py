"""The plots of a training, as PNG bytes from plain numbers; pure. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import InvalidArgumentError
from ...figures import dress_axis, empty_figure, name_axes, text_of, to_png

# Colour-blind safe (Okabe and Ito, 2008).
_TRAINING, _VALIDATION, _BEST = "#0072B2", "#D55E00", "#999999"
_GRID = "#e6e6e6"
_LABEL_LENGTH = 24
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


def _legend_of(axis: Any) -> tuple[list[Any], list[str]]:
    handles, labels = axis.get_legend_handles_labels()
    return handles, labels


def _whole_numbers() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=6, integer=True, min_n_ticks=1)
