"""The plots of an evaluation, as PNG bytes from plain numbers. Needs matplotlib."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from PIL import Image

from ... import figures as style
from ...errors import ImageError
from ...etl.images.stored_image import decode_image
from ...figures import INK, empty_figure, to_png
from ...results import tail_of
from ...training.tasks.class_metrics import ClassMetrics
from ...training.tasks.plots import draw_confusion_matrix
from .comparison import ModelComparison
from .metrics import ModelMetrics
from .result import Shown

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

MOST_CLASSES_DRAWN = 25
THUMBNAIL_SIDE_PX = 160
_BEFORE, _AFTER, _HIGHLIGHT, _WRONG = "#b8bec6", "#2a6fb0", "#d9822b", "#c0392b"
_PRECISION, _RECALL = "#E69F00", "#0072B2"
_GRID = "#e6e6e6"
_SHEET_COLUMNS, _PAIR_COLUMNS = 6, 3
# Characters of a name: at a bar, above or below an image, in a separate line.
_LABEL_LENGTH, _CAPTION_LENGTH, _TITLE_LENGTH = 24, 18, 60


def draw_plots(evaluation: ModelMetrics, mistakes: Sequence[Shown]) -> dict[str, bytes]:
    """Draws what an evaluation has data for."""
    plots = {}
    if evaluation.rows:
        plots["classes"] = _draw_classes(evaluation.classes)
        plots["confusion_matrix"] = draw_confusion_matrix(
            evaluation.confusion, [one.name for one in evaluation.classes]
        )
    if evaluation.calibration is not None:
        plots["calibration"] = _draw_calibration(evaluation.calibration, evaluation.ece or 0.0)
    if mistakes:
        plots["worst_mistakes"] = _draw_sheet(mistakes)
    return plots


def draw_slices(slices: Mapping[str, ModelMetrics], column: str, whole: float | None) -> bytes:
    """Draws the accuracy of each value of a column."""
    import pandas as pd

    figure, (axis,) = style.new_figure(max(1.8, 0.3 * len(slices) + 1.1))
    names = [f"{_text(value)}  ({one.rows:,})" for value, one in slices.items()]
    accuracies = pd.DataFrame({"accuracy": [one.accuracy for one in slices.values()]}, dtype=float)
    style.draw_shares(axis, accuracies, [_AFTER], names)
    if whole is not None:
        axis.axvline(whole, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    style.name_axes(axis, "", "", f"accuracy by {_text(column)}; in brackets: rows; dashed: all rows")
    return to_png(figure)


def draw_comparison(comparison: ModelComparison, samples: Sequence[Shown], names: tuple[str, str]) -> bytes:
    """Draws recall per class of both models, with many classes the most changed, next to images that changed."""
    return to_png(comparison_figure(comparison, samples, names))


def comparison_figure(comparison: ModelComparison, samples: Sequence[Shown], names: tuple[str, str]) -> Figure:
    """Lays out the plot of `draw_comparison`."""
    drawn, shown = _most_changed(comparison), list(samples)[:12]
    figure = empty_figure(11.5, max(6.6 if len(shown) > 6 else 5.2, 0.34 * len(drawn) + 1.9))
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=[1.15, 1])[0]
    few = f" ({len(drawn)} of {len(comparison.classes)}, most changed)" if len(drawn) < len(comparison.classes) else ""
    trained = "; in brackets: training images" if drawn["trained_after"].notna().any() else ""
    title = [f"Recall per class{few}{trained}", *(style.text_of(name, _TITLE_LENGTH) for name in names)]
    left.suptitle("{}\ngrey: {}\ncolour: {}".format(*title), x=0.01, ha="left", fontsize=10, color=INK)
    _draw_recalls(left.subplots(), drawn, comparison.most_improved_class)
    if shown:
        right.suptitle("Truth, then the answer of the first → of the second model", fontsize=10, color=INK)
        _draw_samples(right.subplots(max(2, -(-len(shown) // _PAIR_COLUMNS)), _PAIR_COLUMNS, squeeze=False), shown)
    return figure


def thumbnail(one: Shown) -> bytes | None:
    """Makes a small JPEG of a stored image; None where it does not decode."""
    image = _decoded(one)
    if image is None:
        return None
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def _draw_classes(classes: Sequence[ClassMetrics]) -> bytes:
    import pandas as pd

    worst = pd.DataFrame(classes).sort_values("f1", kind="stable").head(MOST_CLASSES_DRAWN)  # those without F1 are last
    figure, (axis,) = style.new_figure(max(2.2, 0.36 * len(worst) + 1.3))
    names = [f"{_text(name)}  ({rows:,})" for name, rows in zip(worst["name"], worst["support"], strict=True)]
    style.draw_shares(axis, worst[["precision", "recall"]].astype(float), [_PRECISION, _RECALL], names)
    few = f"the {len(worst)} of {len(classes)} classes of the lowest F1" if len(worst) < len(classes) else "classes"
    style.name_axes(axis, "", "", f"{few}, the lowest F1 first; in brackets: rows")
    style.draw_legend(figure, axis)
    return to_png(figure)


def _draw_calibration(bins: pd.DataFrame, ece: float) -> bytes:
    figure, (left, right) = style.new_figure(3.9, 2)
    left.plot([0, 1], [0, 1], color="#999999", linewidth=1, linestyle=(0, (4, 3)), label="perfectly calibrated")
    places, accuracies, rows = bins["confidence"], bins["accuracy"], bins["rows"]
    left.plot(places, accuracies, color=_AFTER, linewidth=0.8, label="model")
    # A point's area shows its number of answers, because a few answers are weak evidence.
    left.scatter(places, accuracies, 8 + 90 * rows / rows.max(), color=_AFTER, zorder=3)
    left.set_xlim(0, 1)
    left.set_ylim(-0.03, 1.06)
    left.grid(color=_GRID, linewidth=0.8)
    left.legend(frameon=False, fontsize=8, loc="upper left")
    style.name_axes(left, "probability of the answer", "share that is right", f"calibration error {ece:.3f}")
    right.bar(places, rows, 0.03, color=_AFTER)
    right.set_xlim(0, 1)
    right.yaxis.set_major_locator(style.few_ticks(6))
    style.name_axes(right, "probability of the answer", "", "rows")
    return to_png(figure)


def _draw_recalls(axis: Any, classes: pd.DataFrame, highlighted: str | None) -> None:
    style.dress_axis(axis)
    trained = classes[["trained_before", "trained_after"]].astype(float).itertuples(index=False)
    names = [
        _text(name) + ("" if math.isnan(before + after) else f"  ({before:,.0f} → {after:,.0f})")
        for name, (before, after) in zip(classes["name"], trained, strict=True)
    ]
    style.draw_shares(axis, classes[["recall_before", "recall_after"]].astype(float), [_BEFORE, _AFTER], names)
    for bar, label, name in zip(axis.containers[1], axis.get_yticklabels(), classes["name"], strict=True):
        if name == highlighted:
            bar.set_color(_HIGHLIGHT)
            label.set_fontweight("bold")
    style.name_axes(axis, "recall on the same images", "")


def _most_changed(comparison: ModelComparison) -> pd.DataFrame:
    """Gives the classes with the most changed answers, in their order, the most improved class among them."""
    import pandas as pd

    classes = pd.DataFrame(comparison.classes)
    changed = (classes["fixed"] + classes["broken"]).where(
        classes["name"] != comparison.most_improved_class, float("inf")
    )
    return classes.loc[changed.sort_values(ascending=False, kind="stable").index[:MOST_CLASSES_DRAWN].sort_values()]


def _draw_sheet(shown: Sequence[Shown]) -> bytes:
    rows = -(-len(shown) // _SHEET_COLUMNS)
    figure = empty_figure(2.1 * _SHEET_COLUMNS, 2.6 * rows)
    _draw_samples(figure.subplots(rows, _SHEET_COLUMNS, squeeze=False), shown)
    return to_png(figure)


def _draw_samples(grid: Any, shown: Sequence[Shown]) -> None:
    for axis in grid.flat[len(shown) :]:
        axis.axis("off")
    for axis, one in zip(grid.flat, shown, strict=False):
        image = _decoded(one)
        if image is not None:
            axis.imshow(image, interpolation="nearest")
        answers = "\n→ ".join(_caption(*answer) for answer in one.answers)
        is_right = one.answers[-1][0] == one.truth
        axis.set_title(f"{_caption(one.truth)}\n{answers}", fontsize=8, color=INK if is_right else _WRONG)
        # A label, unlike a text, has its place in the layout: the titles of the next row are below it.
        axis.set_xlabel(_text(tail_of(one.path)), fontsize=7)
        axis.set(xticks=[], yticks=[], frame_on=False)


def _caption(name: str, probability: float | None = None) -> str:
    text = style.text_of(name, _CAPTION_LENGTH)
    return text if probability is None else f"{text} {probability:.2f}"


def _decoded(one: Shown) -> Image.Image | None:
    if one.image is None:
        return None
    try:
        image = decode_image(one.image, target_size=THUMBNAIL_SIDE_PX).image.convert("RGB")
    except ImageError:
        return None
    image.thumbnail((THUMBNAIL_SIDE_PX, THUMBNAIL_SIDE_PX))
    return image


def _text(name: str) -> str:
    return style.text_of(name, _LABEL_LENGTH)
