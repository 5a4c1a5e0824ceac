"""The figures of a profile. Needs matplotlib, which is imported only when a figure is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ... import figures as style
from .data import TableProfile, by_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# As many classes as a bar chart names readably; more are drawn as a curve, with the largest and smallest named.
_MOST_BARS, _ENDS_NAMED = 40, 15
# As many classes as have their names under their shares.
_MOST_NAMED_SHARES = 12
# Classes of a comparison: those that differ most.
_MOST_CHANGES = 20
_COMMON_SIZES = 12
_MOST_BOXES_SHOWN = 30


def draw_plots(profile: TableProfile) -> dict[str, bytes]:
    """Draws what a profile has data for: PNG files by name without suffix, in the order of the page."""
    figures = {name: draw(profile) for name, draw in PLOTS.items()}
    return {name: style.to_png(figure) for name, figure in figures.items() if figure is not None}


def _draw_comparison(profile: TableProfile) -> Figure | None:
    found = profile.comparison
    classes = None if found is None else found.classes[found.classes["before"] != found.classes["after"]]
    if found is None or classes is None or classes.empty:
        return None
    most = (classes["after"] - classes["before"]).abs().nlargest(_MOST_CHANGES).index
    classes = classes.loc[most, ["before", "after"]]
    classes = classes.loc[classes.max(axis=1).sort_values(ascending=False, kind="stable").index]
    figure, (axis,) = style.new_figure(max(1.7, 0.36 * len(classes) + 1.1))
    versions = [f"version {found.version}", f"version {profile.version}"]
    style.draw_bars(axis, classes.set_axis(versions, axis=1), ("#b9c4ce", style.SPLIT_COLOURS[0]), stacked=False)
    style.name_axes(axis, "images", "", "classes whose number of images differs, by version")
    style.draw_legend(figure, axis)
    return figure


def _draw_classes(profile: TableProfile) -> Figure | None:
    counts = by_size(profile.counts)
    if not counts.to_numpy().any():
        return None
    colours = list(style.colours_of(profile.splits).values())
    if len(counts) <= _MOST_BARS:
        figure, (axis,) = style.new_figure(max(1.6, 0.26 * len(counts) + 1.1))
        style.draw_bars(axis, counts, colours)
        style.name_axes(axis, profile.unit, "")
        style.draw_legend(figure, axis)
        return figure
    figure, (curve, top, bottom) = style.new_figure(4.7, 3, (2.2, 1, 1))
    style.draw_steps(curve, counts, colours)
    curve.yaxis.set_major_formatter("{x:,.0f}")
    middle = float(counts.sum(axis=1).median())
    curve.axhline(middle, color=style.INK, linewidth=0.8, linestyle=(0, (4, 3)))
    note = f"median {middle:,.0f}", (len(counts), middle), (-4, 3)
    curve.annotate(*note, textcoords="offset points", ha="right", fontsize=8)
    style.name_axes(curve, f"{len(counts)} classes, by size", profile.unit, f"{profile.unit} of each class")
    largest, smallest = counts.head(_ENDS_NAMED), counts.tail(_ENDS_NAMED)
    for axis, ends, title in ((top, largest, "largest"), (bottom, smallest, "smallest")):
        style.draw_bars(axis, ends, colours, ticks=2)
        style.name_axes(axis, "", "", f"the {_ENDS_NAMED} {title}")
    style.draw_legend(figure, curve)
    return figure


def _draw_splits(profile: TableProfile) -> Figure | None:
    counts = profile.counts[profile.counts.sum(axis=1) > 0]
    if counts.empty or len(profile.splits) < 2:
        return None
    shares = counts.div(counts.sum(axis=1), axis=0).sort_values(profile.splits[0], kind="stable")
    colours = list(style.colours_of(profile.splits).values())
    figure, (whole, each) = style.new_figure(3.4, 2, (max(1, 0.3 * len(profile.splits)), 2.4))
    places = range(len(profile.splits))
    whole.bar(places, profile.rows_by_split, color=colours, width=0.7)
    for place, count in enumerate(profile.rows_by_split):
        label = f"{count:,}\n{count / max(profile.rows, 1):.1%}"
        whole.annotate(label, (place, count), (0, 2), textcoords="offset points", ha="center", fontsize=8)
    style.name_ticks(whole, places, style.texts_of(profile.splits), 32)
    whole.yaxis.set_major_formatter("{x:,.0f}")
    whole.margins(y=0.2)
    style.name_axes(whole, "", "images", "all images")
    style.draw_steps(each, shares, colours)
    each.set_ylim(0, 1)
    each.yaxis.set_major_formatter(_percent)
    below = ""
    if len(shares) <= _MOST_NAMED_SHARES:
        style.name_ticks(each, np.arange(len(shares)) + 0.5, style.texts_of(list(shares.index), 14), 70)
        for edge in range(1, len(shares)):
            each.axvline(edge, color="white", linewidth=2)
    else:
        each.xaxis.set_major_locator(style.few_ticks(8))
        below = f"{len(shares)} classes, by share of {style.texts_of(profile.splits)[0]}"
    style.name_axes(each, below, "", f"share of each split in the {profile.unit} of each class")
    return figure


def _draw_sizes(profile: TableProfile) -> Figure | None:
    images = profile.images
    sizes = images[["width", "height"]].dropna().astype(int).value_counts()
    titles = {"stored_bytes": "bytes per stored image", "source_bytes": "bytes of the source files"}
    shown = [name for name in titles if name in images and images[name].notna().any()]
    if len(sizes) < 2 and not shown:
        return None
    shown = shown[:1] if len(sizes) > 1 else shown
    figure, axes = style.new_figure(3.2, len(shown) + (len(sizes) > 1))
    if len(sizes) > 1:
        common = sizes.head(_COMMON_SIZES)
        bars = common.set_axis([f"{width} x {height}" for width, height in common.index])
        if len(sizes) > len(common):
            bars.loc[f"{len(sizes) - len(common):,} others"] = sizes.sum() - common.sum()
        style.draw_bars(axes[0], bars.to_frame(), (style.SINGLE,), ticks=5)
        style.name_axes(axes[0], "images", "", "width x height in pixels")
    for axis, name in zip(axes[len(axes) - len(shown) :], shown, strict=True):
        _draw_values(axis, images[name].dropna() / 1000)
        style.name_axes(axis, "kB", "images", titles[name])
    return figure


def _draw_sources(profile: TableProfile) -> Figure | None:
    sizes = profile.images[["source_width", "source_height"]].dropna()
    if len(sizes.drop_duplicates()) < 2:  # the page's facts have the one size
        return None
    figure, (widths, heights, aspects) = style.new_figure(3.0, 3)
    for axis, name in ((widths, "width"), (heights, "height")):
        _draw_values(axis, sizes[f"source_{name}"])
        axis.xaxis.set_major_locator(style.few_ticks(5))
        style.name_axes(axis, "pixels", "files", f"{name} of the source files")
    style.draw_histogram(aspects, np.log2(sizes["source_width"] / sizes["source_height"]), 24, (-3, 3))
    aspects.set_xticks(range(-3, 4), ["1:8", "1:4", "1:2", "1:1", "2:1", "4:1", "8:1"])
    style.name_axes(aspects, "width : height", "files", "aspect ratio")
    return figure


def _draw_brightness(profile: TableProfile) -> Figure | None:
    if "brightness" not in profile.images or profile.images["brightness"].isna().all():
        return None
    figure, (axis,) = style.new_figure(2.8)
    edges, labels = np.linspace(0, 1, 26), style.texts_of(profile.splits)
    for (split, colour), label in zip(style.colours_of(profile.splits).items(), labels, strict=True):
        values = profile.images.loc[profile.images["split"] == split, "brightness"].dropna()
        shares = np.histogram(values, edges)[0] / max(len(values), 1)
        axis.stairs(shares, edges, color=colour, label=label, linewidth=1.6)
    axis.set_xlim(0, 1)
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter(_percent)
    style.name_axes(axis, "mean grey of an image: 0 is black, 1 is white", "share of the split", "brightness")
    style.draw_legend(figure, axis)
    return figure


def _draw_boxes(profile: TableProfile) -> Figure | None:
    boxes = profile.boxes
    if boxes.empty:
        return None
    figure, (side, shape, number) = style.new_figure(3.2, 3)
    style.draw_histogram(side, np.sqrt(boxes["relative_width"] * boxes["relative_height"]).dropna(), 25, (0, 1))
    side.xaxis.set_major_formatter(_percent)
    style.name_axes(side, "side relative to its image", "boxes", "size: √(box area / image area)")
    down, across = boxes[["relative_height", "relative_width"]].dropna().to_numpy().T
    grid = np.log1p(np.histogram2d(down, across, bins=20, range=((0, 1), (0, 1)))[0])
    shape.imshow(grid, origin="lower", extent=(0, 1, 0, 1), cmap="Blues", vmin=0, vmax=max(grid.max(), 1.0))
    for axis in (shape.xaxis, shape.yaxis):
        axis.set_major_formatter(_percent)
    style.name_axes(shape, "width", "height", "width by height, of the image")
    counts = np.bincount(profile.images["boxes"].dropna().clip(upper=_MOST_BOXES_SHOWN).astype(int))
    number.bar(range(len(counts)), counts, width=0.9, color=style.SINGLE)
    number.yaxis.set_major_formatter("{x:,.0f}")
    number.xaxis.set_major_locator(style.few_ticks(6))
    if len(counts) > _MOST_BOXES_SHOWN:
        number.set_xticks([0, 10, 20, _MOST_BOXES_SHOWN], ["0", "10", "20", f"{_MOST_BOXES_SHOWN}+"])
    style.name_axes(number, "boxes", "images", "boxes per image")
    return figure


def _draw_similar(profile: TableProfile) -> Figure | None:
    if profile.similar is None or not profile.splits:
        return None
    near, splits = profile.similar.near, style.texts_of(profile.splits)
    figure, (axis,) = style.new_figure(0.42 * len(splits) + 1.3)
    shares = near.div(profile.rows_by_split, axis=0).to_numpy()
    few = len(splits) < 6
    for (row, column), share in np.ndenumerate(shares):
        text = f"{near.iloc[row, column]:,}{'  (' if few else chr(10)}{share:.1%}{')' if few else ''}"
        colour = "white" if share > 0.5 else style.INK
        axis.text(column, row, text, ha="center", va="center", fontsize=9 if few else 7, color=colour)
    axis.imshow(shares, cmap="Oranges", vmin=0, vmax=1, aspect="auto")
    axis.xaxis.tick_top()
    style.name_ticks(axis, range(len(splits)), splits, style.FIGURE_CHARACTERS, above=True)
    axis.set_yticks(range(len(splits)), splits)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    style.name_axes(axis, "", "", "images of the row's split that look like one of the column's")
    return figure


def _draw_quarantine(profile: TableProfile) -> Figure | None:
    if profile.quarantine.empty:
        return None
    figure, (axis,) = style.new_figure(max(1.4, 0.28 * len(profile.reasons) + 0.9))
    style.draw_bars(axis, profile.reasons.to_frame(), ("#D55E00",))
    style.name_axes(axis, "files", "")
    return figure


# In the order in which a page shows them.
PLOTS = {
    "comparison": _draw_comparison,
    "class_distribution": _draw_classes,
    "splits": _draw_splits,
    "image_sizes": _draw_sizes,
    "source_sizes": _draw_sources,
    "brightness": _draw_brightness,
    "box_sizes": _draw_boxes,
    "near_duplicates": _draw_similar,
    "quarantine": _draw_quarantine,
}


def _draw_values(axis: Axes, values: pd.Series) -> None:
    """A histogram up to the 99.5th percentile, with more bins for more values; larger values are in the last bin."""
    low, high = float(values.min()), float(np.percentile(values, 99.5))
    bins = min(40, max(8, int(np.sqrt(len(values))) * 2))
    style.draw_histogram(axis, values, bins, (low, high if high > low else low + max(1.0, abs(low) * 0.1)))


def _percent(value: float, _: Any) -> str:
    return f"{value:.0%}"
