"""The plot of a confusion matrix, as PNG bytes. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from ...errors import InvalidArgumentError
from ...figures import INK, dress_axis, empty_figure, name_axes, text_of, to_png

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# Largest number of classes with readable names and counts in the cells; more are drawn as colours only.
_NAMED_CLASSES, _COUNTED_CLASSES = 60, 25
_LABEL_LENGTH = 24
_UPRIGHT = 60  # characters next to each other
_MATRIX_DPI = 120  # large matrices stay below 2,000 pixels


def draw_confusion_matrix(confusion: npt.NDArray[np.int64], names: Sequence[str]) -> bytes:
    """Draws a confusion matrix: each line is coloured by shares of its true class, and cells show counts."""
    import numpy as np

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
