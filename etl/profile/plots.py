"""The plots of a profile, as PNG bytes; pure. Needs matplotlib, which is asked for only here."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import MissingDependencyError
from .data import MOST_BOXES_SHOWN, ClassRows, Histogram, ImageSizes, TableProfile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colour-blind safe (Okabe and Ito, 2008, then Tol's muted), in the order of the splits: enough for ten folds.
SPLIT_COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"),
    *("#332288", "#999933", "#882255", "#44AA99", "#999999"),
)
_INK, _GRID, _SINGLE = "#333333", "#dddddd", "#4b6a88"
_DPI = 144
_WIDTH = 9.0
# As many classes as a bar chart names readably; more are drawn as a curve, with the largest and smallest named.
MOST_BARS = 40
_ENDS_NAMED = 15
_LABEL_LENGTH = 28
# Letters of a tick's size, side by side: the plot of all splits, that of each class beside it, and a whole figure.
_LETTERS_OF_WHOLE, _LETTERS_OF_EACH, _LETTERS_OF_ALL = 32, 70, 95
_FONT = "DejaVu Sans"
# In the order in which a page shows them.
PLOTS = ("class_distribution", "splits", "image_sizes", "box_sizes", "near_duplicates", "quarantine")
_NEEDS_MATPLOTLIB = "the plots of a profile need matplotlib: pip install 'lakelens[search]'"


def draw_plots(profile: TableProfile) -> dict[str, bytes]:
    """Draws what a profile has data for.

    Returns:
        PNG files by name without suffix, in the order in which a page shows them.

    Raises:
        MissingDependencyError: If matplotlib is not installed.
    """
    has_classes = any(profile.count(entry) for entry in profile.named_classes)
    plots: tuple[Callable[[TableProfile], Figure] | None, ...] = (
        _draw_classes if has_classes else None,
        _draw_splits if has_classes and len(profile.splits) > 1 else None,
        _draw_sizes if profile.rows and _has_sizes(profile.sizes) else None,
        _draw_boxes if profile.boxes is not None else None,
        _draw_duplicates if profile.duplicates and profile.splits else None,
        _draw_quarantine if profile.quarantine and profile.quarantine.total else None,
    )
    return {name: _png(draw(profile)) for name, draw in zip(PLOTS, plots, strict=True) if draw is not None}


def colours_of(splits: Sequence[str]) -> dict[str, str]:
    """Assigns a colour to each split."""
    return {split: SPLIT_COLOURS[min(index, len(SPLIT_COLOURS) - 1)] for index, split in enumerate(splits)}


def _figure(height: float, columns: int = 1, ratios: Sequence[float] | None = None) -> tuple[Figure, Any]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(_NEEDS_MATPLOTLIB) from error
    figure = Figure(figsize=(_WIDTH, height), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, columns, squeeze=False, gridspec_kw={"width_ratios": ratios} if ratios else None)[0]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color("#999999")
        axis.tick_params(colors=_INK, labelsize=9, length=3)
    return figure, axes


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _draw_classes(profile: TableProfile) -> Figure:
    classes = sorted(profile.named_classes, key=lambda entry: (-profile.count(entry), str(entry.name)))
    if len(classes) <= MOST_BARS:
        figure, (axis,) = _figure(max(1.6, 0.26 * len(classes) + 1.1))
        _class_bars(axis, classes, profile)
        _legend(figure, axis)
        return figure
    figure, (curve, top, bottom) = _figure(4.7, 3, (2.2, 1, 1))
    _class_curve(curve, classes, profile)
    _class_bars(top, classes[:_ENDS_NAMED], profile, f"the {_ENDS_NAMED} largest")
    _class_bars(bottom, classes[-_ENDS_NAMED:], profile, f"the {_ENDS_NAMED} smallest")
    _legend(figure, curve)
    return figure


def _class_bars(axis: Axes, classes: Sequence[ClassRows], profile: TableProfile, title: str = "") -> None:
    places = np.arange(len(classes))
    left = np.zeros(len(classes))
    for split, colour in colours_of(profile.splits).items():
        rows = np.array([profile.counts(entry).get(split, 0) for entry in classes])
        axis.barh(places, rows, left=left, color=colour, height=0.78, label=_text(split))
        left += rows
    for place, total in zip(places, left, strict=True):
        axis.annotate(f"{int(total):,}", (total, place), (3, 0), textcoords="offset points", va="center", fontsize=8)
    axis.set_yticks(places, [_text(entry.name) for entry in classes])
    axis.set_ylim(len(classes) - 0.4, -0.6)
    axis.margins(x=0.14)
    axis.xaxis.set_major_locator(_few_ticks(2 if title else 8))
    axis.xaxis.set_major_formatter("{x:,.0f}")
    _name(axis, profile.unit if not title else "", "", title)


def _class_curve(axis: Axes, classes: Sequence[ClassRows], profile: TableProfile) -> None:
    edges = np.arange(len(classes) + 1)
    low = np.zeros(len(classes))
    for split, colour in colours_of(profile.splits).items():
        high = low + np.array([profile.counts(entry).get(split, 0) for entry in classes])
        axis.stairs(high, edges, baseline=low, fill=True, color=colour, label=_text(split), linewidth=0)
        low = high
    axis.set_xlim(0, len(classes))
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter("{x:,.0f}")
    middle = float(np.median(low))
    axis.axhline(middle, color=_INK, linewidth=0.8, linestyle=(0, (4, 3)))
    axis.annotate(
        f"median {middle:,.0f}", (len(classes), middle), (-4, 3), textcoords="offset points", ha="right", fontsize=8
    )
    _name(axis, f"{len(classes)} classes, by size", profile.unit, f"{profile.unit} of each class")


def _draw_splits(profile: TableProfile) -> Figure:
    classes = [entry for entry in profile.named_classes if profile.count(entry)]
    first = profile.splits[0]
    classes.sort(key=lambda entry: profile.counts(entry).get(first, 0) / profile.count(entry))
    figure, (whole, each) = _figure(3.4, 2, (max(1, 0.3 * len(profile.splits)), 2.4))
    rows = profile.rows_by_split
    colours = colours_of(profile.splits)
    whole.bar(range(len(rows)), list(rows.values()), color=[colours[split] for split in rows], width=0.7)
    for place, count in enumerate(rows.values()):
        label = f"{count:,}\n{count / max(profile.rows, 1):.1%}"
        whole.annotate(label, (place, count), (0, 2), textcoords="offset points", ha="center", fontsize=8)
    _name_ticks(whole, range(len(rows)), [_text(split) for split in rows], _LETTERS_OF_WHOLE)
    whole.yaxis.set_major_formatter("{x:,.0f}")
    whole.margins(y=0.2)
    _name(whole, "", "images", "all images")
    edges = np.arange(len(classes) + 1)
    low = np.zeros(len(classes))
    for split in profile.splits:
        high = low + np.array([profile.counts(entry).get(split, 0) / profile.count(entry) for entry in classes])
        each.stairs(high, edges, baseline=low, fill=True, color=colours[split], linewidth=0)
        low = high
    each.set_xlim(0, len(classes))
    each.set_ylim(0, 1)
    each.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    if len(classes) <= 12:
        _name_ticks(each, edges[:-1] + 0.5, [_text(entry.name, 14) for entry in classes], _LETTERS_OF_EACH)
        for edge in edges[1:-1]:
            each.axvline(edge, color="white", linewidth=2)
    else:
        each.xaxis.set_major_locator(_few_ticks(8))
    below = "" if len(classes) <= 12 else f"{len(classes)} classes, by share of {_text(first)}"
    _name(each, below, "", f"share of each split in the {profile.unit} of each class")
    return figure


def _has_sizes(sizes: ImageSizes) -> bool:
    return sizes.distinct > 1 or sizes.stored_kilobytes is not None or sizes.source_kilobytes is not None


def _draw_sizes(profile: TableProfile) -> Figure:
    sizes = profile.sizes
    one_size = sizes.distinct <= 1
    figure, axes = _figure(3.2, 2 if not one_size or sizes.source_kilobytes else 1)
    histograms = [
        (sizes.stored_kilobytes, "stored bytes per image", SPLIT_COLOURS[0]),
        (sizes.source_kilobytes, "bytes of the source files", _SINGLE),
    ]
    if one_size:
        shown = [entry for entry in histograms if entry[0] is not None]
        for axis, (histogram, title, colour) in zip(axes, shown, strict=False):
            _histogram(axis, histogram, colour)
            _name(axis, "kB", "images", title)
        for axis in axes[len(shown) :]:
            axis.remove()
        return figure
    _common_sizes(axes[0], profile)
    histogram, title, colour = histograms[0] if histograms[0][0] is not None else histograms[1]
    _histogram(axes[1], histogram, colour)
    _name(axes[1], "kB", "images", title)
    return figure


def _common_sizes(axis: Axes, profile: TableProfile) -> None:
    sizes = profile.sizes
    names = [f"{width} x {height}" for (width, height), _ in sizes.common]
    counts = [count for _, count in sizes.common]
    if sizes.distinct > len(counts):
        names.append(f"{sizes.distinct - len(counts):,} others")
        counts.append(sizes.known - sum(counts))
    places = range(len(names))
    axis.barh(places, counts, color=_SINGLE, height=0.78)
    for place, count in zip(places, counts, strict=True):
        axis.annotate(f"{count:,}", (count, place), (3, 0), textcoords="offset points", va="center", fontsize=8)
    axis.set_yticks(places, names)
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.margins(x=0.16)
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.xaxis.set_major_locator(_few_ticks(5))
    _name(axis, "images", "", "width x height in pixels")


def _draw_boxes(profile: TableProfile) -> Figure:
    boxes = profile.boxes
    if boxes is None:
        raise ValueError("a profile without boxes has no plot of them")
    figure, (side, shape, number) = _figure(3.2, 3)
    _histogram(side, boxes.relative_side, SPLIT_COLOURS[0])
    side.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    _name(side, "side relative to its image", "boxes", "size: √(box area / image area)")
    grid = np.array(boxes.width_by_height, dtype=float)
    shown = shape.imshow(
        np.log1p(grid), origin="lower", extent=(0, 1, 0, 1), cmap="Blues", aspect="equal", interpolation="nearest"
    )
    shown.set_clim(0, max(float(np.log1p(grid).max()), 1.0))
    for axis in (shape.xaxis, shape.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:.0%}")
    _name(shape, "width", "height", "width by height, of the image")
    keys = sorted(boxes.per_image)
    counts = [boxes.per_image.get(key, 0) for key in range(max(keys, default=0) + 1)]
    number.bar(range(len(counts)), counts, width=0.9, color=_SINGLE)
    number.yaxis.set_major_formatter("{x:,.0f}")
    number.xaxis.set_major_locator(_few_ticks(6))
    if len(counts) > MOST_BOXES_SHOWN:
        number.set_xticks([0, 10, 20, MOST_BOXES_SHOWN], ["0", "10", "20", f"{MOST_BOXES_SHOWN}+"])
    _name(number, "boxes", "images", "boxes per image")
    return figure


def _draw_duplicates(profile: TableProfile) -> Figure:
    duplicates = profile.duplicates
    if duplicates is None:
        raise ValueError("a profile without near-duplicates has no plot of them")
    rows = profile.rows_by_split
    splits = profile.splits
    figure, (axis,) = _figure(0.42 * len(splits) + 1.3)
    share = np.zeros((len(splits), len(splits)))
    for i, split in enumerate(splits):
        for j, other in enumerate(splits):
            near = duplicates.within.get(split, 0) if i == j else duplicates.across.get((split, other), 0)
            share[i, j] = near / max(rows[split], 1)
            text = f"{near:,}  ({share[i, j]:.1%})" if len(splits) < 6 else f"{near:,}\n{share[i, j]:.1%}"
            axis.text(
                j,
                i,
                text,
                ha="center",
                va="center",
                fontsize=9 if len(splits) < 6 else 7,
                color="white" if share[i, j] > 0.5 else _INK,
            )
    axis.imshow(share, cmap="Oranges", vmin=0, vmax=1, aspect="auto")
    axis.xaxis.tick_top()
    _name_ticks(axis, range(len(splits)), [_text(split) for split in splits], _LETTERS_OF_ALL, above=True)
    axis.set_yticks(range(len(splits)), [_text(split) for split in splits])
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    _name(axis, "", "", "images of the row's split that look like one of the column's")
    return figure


def _draw_quarantine(profile: TableProfile) -> Figure:
    quarantine = profile.quarantine
    if quarantine is None:
        raise ValueError("a profile without a quarantine has no plot of it")
    reasons = sorted(quarantine.reasons.items(), key=lambda item: (-item[1], item[0]))
    figure, (axis,) = _figure(max(1.4, 0.28 * len(reasons) + 0.9))
    places = range(len(reasons))
    axis.barh(places, [count for _, count in reasons], color="#D55E00", height=0.7)
    for place, (_, count) in zip(places, reasons, strict=True):
        axis.annotate(f"{count:,}", (count, place), (3, 0), textcoords="offset points", va="center", fontsize=8)
    axis.set_yticks(places, [_text(reason) for reason, _ in reasons])
    axis.set_ylim(len(reasons) - 0.4, -0.6)
    axis.margins(x=0.1)
    axis.xaxis.set_major_locator(_few_ticks(8))
    axis.xaxis.set_major_formatter("{x:,.0f}")
    _name(axis, "files", "", "")
    return figure


def _histogram(axis: Axes, histogram: Histogram | None, colour: str) -> None:
    if histogram is None:
        axis.set_visible(False)
        return
    axis.stairs(histogram.counts, histogram.edges, fill=True, color=colour, linewidth=0)
    axis.set_xlim(histogram.edges[0], histogram.edges[-1])
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.yaxis.set_major_locator(_few_ticks(5))


def _few_ticks(most: int) -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=most, integer=True, min_n_ticks=1)


def _name_ticks(axis: Axes, places: Any, names: Sequence[str], letters: int, above: bool = False) -> None:
    """Names ticks, aslant where as many letters as the axis is wide do not hold them side by side."""
    aslant = max(map(len, names)) * len(names) > letters
    turned: dict[str, Any] = (
        {"rotation": 30, "ha": "left" if above else "right", "rotation_mode": "anchor"} if aslant else {}
    )
    axis.set_xticks(places, names, **turned)


def _legend(figure: Figure, axis: Axes) -> None:
    handles, names = axis.get_legend_handles_labels()
    if len(names) > 1:
        columns = max(1, min(len(names), _LETTERS_OF_ALL // (max(map(len, names)) + 6)))
        figure.legend(handles, names, frameon=False, fontsize=9, loc="outside upper right", ncols=columns)


def _name(axis: Axes, x: str, y: str, title: str) -> None:
    axis.set_xlabel(x, fontsize=9, color=_INK)
    axis.set_ylabel(y, fontsize=9, color=_INK)
    if title:
        axis.set_title(title, fontsize=10, color=_INK, loc="left")


def readable(name: str | None, length: int = _LABEL_LENGTH) -> str:
    """Makes a name fit for a picture: no characters that the font lacks, not longer than its place.

    Long names are cut in the middle: folders in folders begin alike and differ in their ends.
    """
    text = "no class" if name is None else name
    known = _known_characters()
    text = "".join(character if ord(character) in known else "□" for character in text)
    end = length // 2
    return text if len(text) <= length else f"{text[: length - end - 1]}…{text[-end:]}"


def find_font() -> str:
    """Returns the path of the font that every matplotlib brings.

    Raises:
        MissingDependencyError: If matplotlib is not installed.
    """
    try:
        from matplotlib.font_manager import findfont
    except ImportError as error:
        raise MissingDependencyError(_NEEDS_MATPLOTLIB) from error
    return str(findfont(_FONT))


def _text(name: str | None, length: int = _LABEL_LENGTH) -> str:
    """Makes a name safe for matplotlib, which takes text between dollar signs for a formula."""
    return readable(name, length).replace("$", r"\$")


@functools.lru_cache(maxsize=1)
def _known_characters() -> frozenset[int]:
    from matplotlib.font_manager import get_font

    return frozenset(get_font(find_font()).get_charmap())
