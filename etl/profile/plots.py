"""The plots of a profile, as PNG bytes; pure. Needs matplotlib, which is asked for only here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .data import MOST_BOXES_SHOWN, ClassRows, ImageSizes, TableProfile
from .figures import (
    INK,
    LETTERS_OF_ALL,
    SINGLE,
    SPLIT_COLOURS,
    draw_histogram,
    draw_legend,
    few_ticks,
    name_axes,
    name_ticks,
    new_figure,
    png_of,
    text_of,
    texts_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# As many classes as a bar chart names readably; more are drawn as a curve, with the largest and smallest named.
MOST_BARS = 40
_ENDS_NAMED = 15
# Classes of a comparison: those that differ most.
_MOST_CHANGES = 20
# Letters of a tick's size, side by side: the plot of all splits, that of each class beside it.
_LETTERS_OF_WHOLE, _LETTERS_OF_EACH = 32, 70
# In the order in which a page shows them.
PLOTS = (
    "comparison",
    "class_distribution",
    "splits",
    "image_sizes",
    "source_sizes",
    "brightness",
    "box_sizes",
    "near_duplicates",
    "quarantine",
)


def draw_plots(profile: TableProfile) -> dict[str, bytes]:
    """Draws what a profile has data for.

    Returns:
        PNG files by name without suffix, in the order in which a page shows them.

    Raises:
        MissingDependencyError: If matplotlib is not installed.
    """
    has_classes = any(profile.count(entry) for entry in profile.named_classes)
    plots: tuple[Callable[[TableProfile], Figure] | None, ...] = (
        _draw_comparison if _changed_classes(profile) else None,
        _draw_classes if has_classes else None,
        _draw_splits if has_classes and len(profile.splits) > 1 else None,
        _draw_sizes if profile.rows and _has_sizes(profile.sizes) else None,
        _draw_sources if profile.sizes.source is not None else None,
        _draw_brightness if profile.sizes.brightness is not None else None,
        _draw_boxes if profile.boxes is not None else None,
        _draw_duplicates if profile.duplicates and profile.splits else None,
        _draw_quarantine if profile.quarantine and profile.quarantine.total else None,
    )
    return {name: png_of(draw(profile)) for name, draw in zip(PLOTS, plots, strict=True) if draw is not None}


def colours_of(splits: Sequence[str]) -> dict[str, str]:
    """Assigns a colour to each split."""
    return {split: SPLIT_COLOURS[min(index, len(SPLIT_COLOURS) - 1)] for index, split in enumerate(splits)}


def _labels_of(splits: Sequence[str]) -> dict[str, str]:
    return dict(zip(splits, texts_of(splits), strict=True))


def _draw_classes(profile: TableProfile) -> Figure:
    classes = sorted(profile.named_classes, key=lambda entry: (-profile.count(entry), str(entry.name)))
    if len(classes) <= MOST_BARS:
        figure, (axis,) = new_figure(max(1.6, 0.26 * len(classes) + 1.1))
        _class_bars(axis, classes, profile)
        draw_legend(figure, axis)
        return figure
    figure, (curve, top, bottom) = new_figure(4.7, 3, (2.2, 1, 1))
    _class_curve(curve, classes, profile)
    _class_bars(top, classes[:_ENDS_NAMED], profile, f"the {_ENDS_NAMED} largest")
    _class_bars(bottom, classes[-_ENDS_NAMED:], profile, f"the {_ENDS_NAMED} smallest")
    draw_legend(figure, curve)
    return figure


def _class_bars(axis: Axes, classes: Sequence[ClassRows], profile: TableProfile, title: str = "") -> None:
    places = np.arange(len(classes))
    left = np.zeros(len(classes))
    labels = _labels_of(profile.splits)
    for split, colour in colours_of(profile.splits).items():
        rows = np.array([profile.counts(entry).get(split, 0) for entry in classes])
        axis.barh(places, rows, left=left, color=colour, height=0.78, label=labels[split])
        left += rows
    for place, total in zip(places, left, strict=True):
        axis.annotate(f"{int(total):,}", (total, place), (3, 0), textcoords="offset points", va="center", fontsize=8)
    axis.set_yticks(places, texts_of([entry.name for entry in classes]))
    axis.set_ylim(len(classes) - 0.4, -0.6)
    axis.margins(x=0.14)
    axis.xaxis.set_major_locator(few_ticks(2 if title else 8))
    axis.xaxis.set_major_formatter("{x:,.0f}")
    name_axes(axis, profile.unit if not title else "", "", title)


def _class_curve(axis: Axes, classes: Sequence[ClassRows], profile: TableProfile) -> None:
    edges = np.arange(len(classes) + 1)
    low = np.zeros(len(classes))
    labels = _labels_of(profile.splits)
    for split, colour in colours_of(profile.splits).items():
        high = low + np.array([profile.counts(entry).get(split, 0) for entry in classes])
        axis.stairs(high, edges, baseline=low, fill=True, color=colour, label=labels[split], linewidth=0)
        low = high
    axis.set_xlim(0, len(classes))
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter("{x:,.0f}")
    middle = float(np.median(low))
    axis.axhline(middle, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    axis.annotate(
        f"median {middle:,.0f}", (len(classes), middle), (-4, 3), textcoords="offset points", ha="right", fontsize=8
    )
    name_axes(axis, f"{len(classes)} classes, by size", profile.unit, f"{profile.unit} of each class")


def _draw_splits(profile: TableProfile) -> Figure:
    classes = [entry for entry in profile.named_classes if profile.count(entry)]
    first = profile.splits[0]
    classes.sort(key=lambda entry: profile.counts(entry).get(first, 0) / profile.count(entry))
    figure, (whole, each) = new_figure(3.4, 2, (max(1, 0.3 * len(profile.splits)), 2.4))
    rows = profile.rows_by_split
    colours = colours_of(profile.splits)
    whole.bar(range(len(rows)), list(rows.values()), color=[colours[split] for split in rows], width=0.7)
    for place, count in enumerate(rows.values()):
        label = f"{count:,}\n{count / max(profile.rows, 1):.1%}"
        whole.annotate(label, (place, count), (0, 2), textcoords="offset points", ha="center", fontsize=8)
    name_ticks(whole, range(len(rows)), texts_of(list(rows)), _LETTERS_OF_WHOLE)
    whole.yaxis.set_major_formatter("{x:,.0f}")
    whole.margins(y=0.2)
    name_axes(whole, "", "images", "all images")
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
        name_ticks(each, edges[:-1] + 0.5, texts_of([entry.name for entry in classes], 14), _LETTERS_OF_EACH)
        for edge in edges[1:-1]:
            each.axvline(edge, color="white", linewidth=2)
    else:
        each.xaxis.set_major_locator(few_ticks(8))
    below = "" if len(classes) <= 12 else f"{len(classes)} classes, by share of {text_of(first)}"
    name_axes(each, below, "", f"share of each split in the {profile.unit} of each class")
    return figure


def _has_sizes(sizes: ImageSizes) -> bool:
    return sizes.distinct > 1 or sizes.stored_kilobytes is not None or sizes.source_kilobytes is not None


def _draw_sizes(profile: TableProfile) -> Figure:
    sizes = profile.sizes
    one_size = sizes.distinct <= 1
    figure, axes = new_figure(3.2, 2 if not one_size or sizes.source_kilobytes else 1)
    histograms = [
        (sizes.stored_kilobytes, "stored bytes per image", SPLIT_COLOURS[0]),
        (sizes.source_kilobytes, "bytes of the source files", SINGLE),
    ]
    if one_size:
        shown = [entry for entry in histograms if entry[0] is not None]
        for axis, (histogram, title, colour) in zip(axes, shown, strict=False):
            draw_histogram(axis, histogram, colour)
            name_axes(axis, "kB", "images", title)
        for axis in axes[len(shown) :]:
            axis.remove()
        return figure
    _common_sizes(axes[0], profile)
    histogram, title, colour = histograms[0] if histograms[0][0] is not None else histograms[1]
    draw_histogram(axes[1], histogram, colour)
    name_axes(axes[1], "kB", "images", title)
    return figure


def _common_sizes(axis: Axes, profile: TableProfile) -> None:
    sizes = profile.sizes
    names = [f"{width} x {height}" for (width, height), _ in sizes.common]
    counts = [count for _, count in sizes.common]
    if sizes.distinct > len(counts):
        names.append(f"{sizes.distinct - len(counts):,} others")
        counts.append(sizes.known - sum(counts))
    places = range(len(names))
    axis.barh(places, counts, color=SINGLE, height=0.78)
    for place, count in zip(places, counts, strict=True):
        axis.annotate(f"{count:,}", (count, place), (3, 0), textcoords="offset points", va="center", fontsize=8)
    axis.set_yticks(places, names)
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.margins(x=0.16)
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.xaxis.set_major_locator(few_ticks(5))
    name_axes(axis, "images", "", "width x height in pixels")


def _draw_sources(profile: TableProfile) -> Figure:
    source = profile.sizes.source
    if source is None:
        raise ValueError("a profile without sizes of source files has no plot of them")
    figure, (widths, heights, aspects) = new_figure(3.0, 3)
    for axis, histogram, title in (
        (widths, source.widths, "width of the source files"),
        (heights, source.heights, "height of the source files"),
    ):
        draw_histogram(axis, histogram, SINGLE)
        axis.xaxis.set_major_locator(few_ticks(5))
        name_axes(axis, "pixels", "files", title)
    draw_histogram(aspects, source.aspects, SINGLE)
    ratios = {-3: "1:8", -2: "1:4", -1: "1:2", 0: "1:1", 1: "2:1", 2: "4:1", 3: "8:1"}
    aspects.set_xticks(list(ratios), list(ratios.values()))
    name_axes(aspects, "width : height", "files", "aspect ratio")
    return figure


def _draw_brightness(profile: TableProfile) -> Figure:
    brightness = profile.sizes.brightness
    if brightness is None:
        raise ValueError("a profile without brightness has no plot of it")
    figure, (axis,) = new_figure(2.8)
    colours, labels = colours_of(profile.splits), _labels_of(profile.splits)
    for split, shares in brightness.shares.items():
        axis.stairs(shares, brightness.edges, color=colours[split], label=labels[split], linewidth=1.6)
    axis.set_xlim(0, 1)
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    name_axes(axis, "mean grey of an image: 0 is black, 1 is white", "share of the split", "brightness")
    draw_legend(figure, axis)
    return figure


def _changed_classes(profile: TableProfile) -> list[tuple[str, int, int]]:
    """The classes whose number of images differs most between the versions: name, before, after; the largest first."""
    if profile.comparison is None:
        return []
    changed = [(name, *rows) for name, rows in profile.comparison.classes.items() if rows[0] != rows[1]]
    shown = sorted(changed, key=lambda entry: -abs(entry[2] - entry[1]))[:_MOST_CHANGES]
    return sorted(shown, key=lambda entry: -max(entry[1:]))


def _draw_comparison(profile: TableProfile) -> Figure:
    comparison, classes = profile.comparison, _changed_classes(profile)
    if comparison is None:
        raise ValueError("a profile without a comparison has no plot of it")
    figure, (axis,) = new_figure(max(1.7, 0.36 * len(classes) + 1.1))
    places = np.arange(len(classes))
    for offset, index, version, colour in (
        (-0.2, 1, comparison.version, "#b9c4ce"),
        (0.2, 2, profile.version, SPLIT_COLOURS[0]),
    ):
        rows = [entry[index] for entry in classes]
        axis.barh(places + offset, rows, height=0.38, color=colour, label=f"version {version}")
        for place, count in zip(places + offset, rows, strict=True):
            axis.annotate(f"{count:,}", (count, place), (3, 0), textcoords="offset points", va="center", fontsize=7)
    axis.set_yticks(places, texts_of([entry[0] for entry in classes]))
    axis.set_ylim(len(classes) - 0.4, -0.6)
    axis.margins(x=0.1)
    axis.xaxis.set_major_locator(few_ticks(8))
    axis.xaxis.set_major_formatter("{x:,.0f}")
    name_axes(axis, "images", "", "classes of other sizes, by version")
    draw_legend(figure, axis)
    return figure


def _draw_boxes(profile: TableProfile) -> Figure:
    boxes = profile.boxes
    if boxes is None:
        raise ValueError("a profile without boxes has no plot of them")
    figure, (side, shape, number) = new_figure(3.2, 3)
    draw_histogram(side, boxes.relative_side, SPLIT_COLOURS[0])
    side.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    name_axes(side, "side relative to its image", "boxes", "size: √(box area / image area)")
    grid = np.array(boxes.width_by_height, dtype=float)
    shown = shape.imshow(
        np.log1p(grid), origin="lower", extent=(0, 1, 0, 1), cmap="Blues", aspect="equal", interpolation="nearest"
    )
    shown.set_clim(0, max(float(np.log1p(grid).max()), 1.0))
    for axis in (shape.xaxis, shape.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:.0%}")
    name_axes(shape, "width", "height", "width by height, of the image")
    keys = sorted(boxes.per_image)
    counts = [boxes.per_image.get(key, 0) for key in range(max(keys, default=0) + 1)]
    number.bar(range(len(counts)), counts, width=0.9, color=SINGLE)
    number.yaxis.set_major_formatter("{x:,.0f}")
    number.xaxis.set_major_locator(few_ticks(6))
    if len(counts) > MOST_BOXES_SHOWN:
        number.set_xticks([0, 10, 20, MOST_BOXES_SHOWN], ["0", "10", "20", f"{MOST_BOXES_SHOWN}+"])
    name_axes(number, "boxes", "images", "boxes per image")
    return figure


def _draw_duplicates(profile: TableProfile) -> Figure:
    duplicates = profile.duplicates
    if duplicates is None:
        raise ValueError("a profile without near-duplicates has no plot of them")
    rows = profile.rows_by_split
    splits = profile.splits
    figure, (axis,) = new_figure(0.42 * len(splits) + 1.3)
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
                color="white" if share[i, j] > 0.5 else INK,
            )
    axis.imshow(share, cmap="Oranges", vmin=0, vmax=1, aspect="auto")
    axis.xaxis.tick_top()
    name_ticks(axis, range(len(splits)), texts_of(splits), LETTERS_OF_ALL, above=True)
    axis.set_yticks(range(len(splits)), texts_of(splits))
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    name_axes(axis, "", "", "images of the row's split that look like one of the column's")
    return figure


def _draw_quarantine(profile: TableProfile) -> Figure:
    quarantine = profile.quarantine
    if quarantine is None:
        raise ValueError("a profile without a quarantine has no plot of it")
    reasons = sorted(quarantine.reasons.items(), key=lambda item: (-item[1], item[0]))
    figure, (axis,) = new_figure(max(1.4, 0.28 * len(reasons) + 0.9))
    places = range(len(reasons))
    axis.barh(places, [count for _, count in reasons], color="#D55E00", height=0.7)
    for place, (_, count) in zip(places, reasons, strict=True):
        axis.annotate(f"{count:,}", (count, place), (3, 0), textcoords="offset points", va="center", fontsize=8)
    axis.set_yticks(places, texts_of([reason for reason, _ in reasons]))
    axis.set_ylim(len(reasons) - 0.4, -0.6)
    axis.margins(x=0.1)
    axis.xaxis.set_major_locator(few_ticks(8))
    axis.xaxis.set_major_formatter("{x:,.0f}")
    name_axes(axis, "files", "", "")
    return figure
