"""The plots of an evaluation, as PNG bytes from plain numbers. Needs matplotlib."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from PIL import Image

from ... import figures as style
from ...errors import ImageError
from ...etl.images.stored_image import decode_image
from ...figures import INK, empty_figure, to_png
from ...html_page import tail_of
from ...training.tasks.class_metrics import ClassMetrics
from ...training.tasks.confusion_plot import draw_confusion_matrix
from .comparison import ClassChange, ModelComparison
from .metrics import CalibrationBin, ModelMetrics
from .result import Shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_CLASSES_DRAWN = 25
THUMBNAIL_SIDE_PX = 160
_BEFORE, _AFTER, _HIGHLIGHT, _WRONG = "#b8bec6", "#2a6fb0", "#d9822b", "#c0392b"
_PRECISION, _RECALL = "#E69F00", "#0072B2"
_GRID = "#e6e6e6"
_SHEET_COLUMNS = 6
_LABEL_LENGTH = 24


def draw_plots(evaluation: ModelMetrics, mistakes: Sequence[Shown]) -> dict[str, bytes]:
    """Draws what an evaluation has data for.

    Returns:
        PNG files by name without suffix.

    Raises:
        MissingDependencyError: If matplotlib is not installed.
    """
    plots = {}
    if evaluation.rows:
        plots["classes"] = _draw_classes(evaluation.classes)
        plots["confusion_matrix"] = draw_confusion_matrix(
            evaluation.confusion, [one.name for one in evaluation.classes]
        )
    if evaluation.calibration:
        plots["calibration"] = _draw_calibration(evaluation.calibration, evaluation.ece or 0.0)
    if mistakes:
        plots["worst_mistakes"] = _draw_sheet(mistakes)
    return plots


def draw_slices(slices: Mapping[str, ModelMetrics], column: str, whole: float | None) -> bytes:
    """Draws the accuracy of each value of a column."""
    figure, (axis,) = style.new_figure(max(1.8, 0.3 * len(slices) + 1.1))
    names = [f"{_text(value)}  ({one.rows:,})" for value, one in slices.items()]
    _draw_shares(axis, {"accuracy": [one.accuracy for one in slices.values()]}, [_AFTER], names)
    if whole is not None:
        axis.axvline(whole, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    style.name_axes(axis, "", "", f"accuracy by {_text(column)}; in brackets: rows; dashed: all rows")
    return to_png(figure)


def draw_comparison(comparison: ModelComparison, samples: Sequence[Shown], names: tuple[str, str]) -> bytes:
    """Draws recall per class of both models next to images whose answer changed.

    With many classes it draws only those whose recall changed most, and notes it in the title.

    Args:
        comparison: The numbers.
        samples: Images with the answers of both models, at most twelve are drawn.
        names: What the two models are called.
    """
    return to_png(comparison_figure(comparison, samples, names))


def comparison_figure(comparison: ModelComparison, samples: Sequence[Shown], names: tuple[str, str]) -> Figure:
    """Lays out the plot of `draw_comparison`."""
    drawn = _most_changed(comparison)
    figure = empty_figure(11.5, max(5.2, 0.34 * len(drawn) + 1.6))
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=[1.15, 1])[0]
    _draw_recalls(left.subplots(), drawn, comparison, names)
    shown = list(samples)[:12]
    if shown:
        grid = right.subplots(max(1, -(-len(shown) // 4)), 4, squeeze=False)
        right.suptitle(f"Truth, then {_text(names[0])} → {_text(names[1])}", fontsize=11)
        _draw_samples(grid, shown)
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
    worst = sorted(classes, key=lambda one: (one.f1 is None, one.f1 or 0.0))[:MOST_CLASSES_DRAWN]
    figure, (axis,) = style.new_figure(max(2.2, 0.36 * len(worst) + 1.3))
    values = {name: [getattr(one, name) for one in worst] for name in ("precision", "recall")}
    _draw_shares(axis, values, [_PRECISION, _RECALL], [f"{_text(one.name)}  ({one.support:,})" for one in worst])
    few = f"the {len(worst)} of {len(classes)} classes of the lowest F1" if len(worst) < len(classes) else "classes"
    style.name_axes(axis, "", "", f"{few}, the lowest F1 first; in brackets: rows")
    style.draw_legend(figure, axis)
    return to_png(figure)


def _draw_calibration(bins: Sequence[CalibrationBin], ece: float) -> bytes:
    figure = empty_figure(5.4, 5.2)
    top, bottom = figure.subplots(2, 1, height_ratios=[3, 1], sharex=True)
    top.plot([0, 1], [0, 1], color="#999999", linewidth=1, linestyle=(0, (4, 3)), label="perfectly calibrated")
    places = [one.confidence for one in bins]
    accuracies = [one.accuracy for one in bins]
    # A point's area shows its number of answers, because a few answers are weak evidence.
    most = max(one.rows for one in bins)
    top.plot(places, accuracies, color=_AFTER, linewidth=0.8, label="model")
    top.scatter(places, accuracies, [8 + 90 * one.rows / most for one in bins], color=_AFTER, zorder=3)
    top.set_xlim(0, 1)
    top.set_ylim(-0.03, 1.06)
    top.grid(color=_GRID, linewidth=0.8)
    top.legend(frameon=False, fontsize=8, loc="center left")
    style.name_axes(top, "", "share that is right", f"reliability; expected calibration error {ece:.3f}")
    bottom.bar(places, [one.rows for one in bins], 0.03, color=_AFTER)
    style.name_axes(bottom, "probability of the answer", "rows")
    for axis in (top, bottom):
        style.dress_axis(axis)
    return to_png(figure)


def _draw_recalls(axis: Any, lines: Sequence[ClassChange], whole: ModelComparison, names: tuple[str, str]) -> None:
    style.dress_axis(axis)
    values = {when: [getattr(one, f"recall_{when}") for one in lines] for when in ("before", "after")}
    _draw_shares(axis, values, [_BEFORE, _AFTER], [_with_rows(one) for one in lines])
    for bar, label, one in zip(axis.containers[1], axis.get_yticklabels(), lines, strict=True):
        if one.name == whole.mended_class:
            bar.set_color(_HIGHLIGHT)
            label.set_fontweight("bold")
    some = f" ({len(lines)} of {len(whole.classes)}, most changed)" if len(lines) < len(whole.classes) else ""
    trained = "\nin brackets: training images" if any(one.trained_after is not None for one in lines) else ""
    title = f"Recall per class{some}: {_text(names[0])} (grey), {_text(names[1])} (colour){trained}"
    style.name_axes(axis, "recall on the same images", "", title)


def _draw_shares(
    axis: Any, values: Mapping[str, Sequence[float | None]], colours: Sequence[str], names: Sequence[str]
) -> None:
    import pandas as pd

    style.draw_shares(axis, pd.DataFrame(values, dtype=float), colours, names)


def _with_rows(one: ClassChange) -> str:
    if one.trained_before is None or one.trained_after is None:
        return _text(one.name)
    return f"{_text(one.name)}  ({one.trained_before:,} → {one.trained_after:,})"


def _most_changed(comparison: ModelComparison) -> list[ClassChange]:
    def order(one: ClassChange) -> tuple[bool, int]:
        return one.name != comparison.mended_class, -(one.mended + one.broken)

    kept = {one.label for one in sorted(comparison.classes, key=order)[:MOST_CLASSES_DRAWN]}
    return [one for one in comparison.classes if one.label in kept]


def _draw_sheet(shown: Sequence[Shown]) -> bytes:
    rows = -(-len(shown) // _SHEET_COLUMNS)
    figure = empty_figure(2.1 * _SHEET_COLUMNS, 2.6 * rows)
    grid = figure.subplots(rows, _SHEET_COLUMNS, squeeze=False)
    _draw_samples(grid, shown)
    return to_png(figure)


def _draw_samples(grid: Any, shown: Sequence[Shown]) -> None:
    for axis in grid.flat[len(shown) :]:
        axis.axis("off")
    for axis, one in zip(grid.flat, shown, strict=False):
        _draw_sample(axis, one)


def _draw_sample(axis: Any, one: Shown) -> None:
    image = _decoded(one)
    if image is not None:
        axis.imshow(image, interpolation="nearest")
    answers = "\n→ ".join(_answer(*answer) for answer in one.answers)
    right = one.answers[-1][0] == one.truth
    axis.set_title(f"{_text(one.truth)}\n{answers}", fontsize=7, color=INK if right else _WRONG)
    # A label, unlike a text, has its place in the layout: the titles of the next row are below it.
    axis.set_xlabel(_text(tail_of(one.path)), fontsize=6)
    axis.set(xticks=[], yticks=[], frame_on=False)


def _answer(name: str, probability: float | None) -> str:
    return _text(name) if probability is None else f"{_text(name)} {probability:.2f}"


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
