"""The plots of a search, as PNG bytes; pure. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import figures as style
from ...results import counted
from ...training.configuration.hyperparameters import Categorical, Int, Leaf, Log
from .history import SearchHistory, place

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SOFT, _FAILED = "#767676", "#9a9a9a"
_BEST = "#d55e00"  # Okabe and Ito's vermillion, distinct from every colour of viridis, even for the colour-blind
MOST_AXES = 8  # of the parallel coordinates; the most important hyperparameters are drawn first
_COLUMNS = 3
_MOST_SLOTS_NAMED = 24
_MOST_TICKS = 6
_GRID = "#e3e3e3"
_SPREADS_SHOWN = 15  # so that a diverged loss does not compress the others


def draw_plots(history: SearchHistory, importance: dict[str, float]) -> dict[str, bytes]:
    """Draws what a search has data for."""
    order = [*importance, *(name for name in history.axes if name not in importance)]
    figures: dict[str, Figure] = {}
    if history.best is not None:
        figures["learning_curves"] = _draw_curves(history)
        if order:
            figures["parallel_coordinates"] = _draw_parallel(history, order[:MOST_AXES])
            figures["hyperparameters"] = _draw_hyperparameters(history, order)
    if importance:
        figures["importance"] = _draw_importance(importance)
    if not history.spans.empty:
        figures["slots"] = _draw_slots(history)
    return {name: style.to_png(figure) for name, figure in figures.items()}


def rung_colours(count: int) -> list[str]:
    """Gives a colour for each rung, darker with its length; in grey print and to the colour-blind, too."""
    import matplotlib as mpl

    shades = np.linspace(0.8, 0.05, count) if count > 1 else [0.3]
    return [mpl.colors.to_hex(mpl.colormaps["viridis"](shade)) for shade in shades]


def _draw_curves(history: SearchHistory) -> Figure:
    figure, (axis,) = style.new_figure(4.6)
    colours, curves, shown = rung_colours(len(history.rungs)), history.curves, history.drawn
    alpha, best = min(0.9, max(0.25, 24 / len(shown))), history.best
    for number, length in shown["length"].items():
        _draw_curve(axis, history, number, color=colours[history.rung_of(length)], alpha=alpha, linewidth=1.2)
    if best is not None and best.best is not None:
        _draw_curve(axis, history, best.number, color=_BEST, linewidth=2.4, label=f"best: trial {best.number}")
        axis.plot([best.best.length], [best.best.metric], "o", color=_BEST, markersize=6, zorder=5)
    ended = shown["length"].map(history.rung_of).value_counts()
    for rung, lengths in history.ends(shown["length"]).items():
        label = f"ended at {lengths}: {counted(ended[rung], 'trial')}"
        axis.plot([], [], color=colours[rung], linewidth=2.4, label=label)
    longest, shortest = shown["length"].max(), curves["length"].min()
    if 0 < 20 * shortest <= longest:
        axis.set_xscale("log")
        axis.set_xticks([rung for rung in history.rungs if rung <= longest])
        axis.set_xticks([], minor=True)
        axis.xaxis.set_major_formatter("{x:g}")
    else:
        axis.xaxis.set_major_locator(style.few_ticks(12))
    _limit_metric(axis, history, curves["metric"])
    style.name_axes(axis, history.unit, style.text_of(history.metric))
    style.draw_legend(figure, axis)
    return figure


def _draw_curve(axis: Axes, history: SearchHistory, trial: Any, **look: Any) -> None:
    curve = history.curves[history.curves["trial"] == trial]
    axis.plot(curve["length"], curve["metric"], marker="o" if len(curve) == 1 else None, markersize=3.5, **look)


def _draw_parallel(history: SearchHistory, names: Sequence[str]) -> Figure:
    import matplotlib as mpl

    figure, (axis,) = style.new_figure(4.6)
    shown = _with_number(history)
    low, high = _limits(history, shown["metric"])
    lines = history.places.loc[shown.index, list(names)].assign(
        metric=((shown["metric"] - low) / (high - low)).clip(0, 1)
    )
    colours = mpl.colormaps["viridis_r" if history.minimized else "viridis"](lines["metric"])
    alpha = min(0.85, max(0.25, 25 / len(shown)))
    for (number, line), colour in zip(lines.iterrows(), colours, strict=True):
        is_best = history.best is not None and number == history.best.number
        look = (_BEST, 2.6, 1, 3) if is_best else (colour, 1.1, alpha, 2)
        axis.plot(line.to_numpy(), **dict(zip(("color", "linewidth", "alpha", "zorder"), look, strict=True)))
    ticks = [_ticks(history.axes[name]) for name in names]
    ticks += [[(share, f"{low + share * (high - low):.3g}") for share in (0, 0.25, 0.5, 0.75, 1)]]
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
    for index, of_axis in enumerate(ticks):
        axis.axvline(index, color=_SOFT, linewidth=0.8, zorder=1)
        for share, text in of_axis:
            at = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
            axis.annotate(
                style.text_of(text, 12), (index, share), fontsize=8, color=style.INK, bbox=box, zorder=4, **at
            )
    axis.set_yticks([])
    axis.spines[["left", "bottom"]].set_visible(False)
    axis.set_xlim(-0.03 * len(names), 1.1 * len(names))
    axis.set_ylim(-0.05, 1.05)
    style.name_ticks(axis, range(len(ticks)), style.texts_of([*names, history.metric]), style.FIGURE_CHARACTERS)
    axis.tick_params(axis="x", length=0)
    return figure


def _draw_hyperparameters(history: SearchHistory, names: Sequence[str]) -> Figure:
    """Draws the last metric of each trial against each hyperparameter."""
    columns = min(_COLUMNS, len(names))
    rows = -(-len(names) // columns)
    figure = style.empty_figure(9.0, 2.5 * rows + 0.3)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    shown, colours = _with_number(history), rung_colours(len(history.rungs))
    shown = shown.sort_values("length", kind="stable")
    colour = [colours[history.rung_of(length)] for length in shown["length"]]
    without, best = history.trials.index.difference(shown.index), history.best
    for axis, name in zip(grid.flat, names, strict=False):
        style.dress_axis(axis)
        leaf, places = history.axes[name], history.places[name]
        axis.scatter(places[shown.index], shown["metric"], c=colour, s=20, linewidths=0.4, edgecolors="white")
        if best is not None and best.best is not None:
            ring = {"s": 80, "facecolors": "none", "edgecolors": _BEST, "linewidths": 2, "zorder": 4}
            axis.scatter([places[best.number]], [best.best.metric], **ring)
        worst = _limit_metric(axis, history, shown["metric"])
        axis.scatter(places[without], [worst] * len(without), marker="x", c=_FAILED, s=24, clip_on=False, zorder=3)
        at, texts = zip(*_ticks(leaf), strict=True)
        if isinstance(leaf, (Categorical, Int)):  # no value lies between two lines
            axis.grid(axis="x", color=_GRID, linewidth=0.8)
        style.name_ticks(axis, at, style.texts_of(texts, 12), 28)
        axis.set_xlim(-0.15, 1.15)
        style.name_axes(axis, style.text_of(name), style.text_of(history.metric) if axis in grid[:, 0] else "")
    for axis in grid.flat[len(names) :]:
        axis.axis("off")
    return figure


def _draw_importance(importance: dict[str, float]) -> Figure:
    import pandas as pd

    shares = pd.DataFrame({"importance": importance}).head(20)
    figure, (axis,) = style.new_figure(0.34 * len(shares) + 0.6)
    style.draw_bars(axis, shares, rung_colours(1), note="{:.0%}")
    axis.xaxis.set_visible(False)
    axis.spines["bottom"].set_visible(False)
    return figure


def _draw_slots(history: SearchHistory) -> Figure:
    spans, colours = history.spans, rung_colours(len(history.rungs))
    slots = sorted(spans["slot"].unique())
    height = min(0.42, 7.0 / len(slots))
    figure, (axis,) = style.new_figure(height * len(slots) + 1.2)
    divisor, unit = _time_unit(history.end - history.start)
    whole = (history.end - history.start) / divisor or 1.0
    for span in spans.itertuples():
        row, start = slots.index(span.slot), span.start / divisor
        width = max((span.end - span.start) / divisor, whole / 1000)
        colour, hatch = (_FAILED, "////") if span.failed else (colours[history.rung_of(span.length)], None)
        axis.barh(row, width, 0.8, start, color=colour, edgecolor="white", linewidth=0.6, hatch=hatch)
        if width > 0.012 * whole * len(str(span.trial)) and height > 0.2:
            is_light = span.failed or (len(colours) > 1 and history.rung_of(span.length) == 0)
            ink = "black" if is_light else "white"
            axis.text(start + width / 2, row, str(span.trial), ha="center", va="center", fontsize=8, color=ink)
    for rung, lengths in history.ends(spans.loc[~spans["failed"], "length"]).items():
        axis.barh(0, 0, color=colours[rung], label=f"to {lengths}")
    if spans["failed"].any():
        axis.barh(0, 0, color=_FAILED, edgecolor="white", hatch="////", label="failed")
    named = len(slots) <= _MOST_SLOTS_NAMED
    axis.set_yticks(range(len(slots)) if named else [], [f"slot {slot}" for slot in slots] if named else [])
    axis.invert_yaxis()
    axis.set_xlim(0, whole)
    style.name_axes(axis, unit, "" if named else f"{len(slots)} slots")
    style.draw_legend(figure, axis)
    return figure


def _with_number(history: SearchHistory) -> pd.DataFrame:
    """Gives the trials whose last metric is a number, the best last, so that it is drawn on top of the others."""
    shown = history.trials[np.isfinite(history.trials["metric"])]
    return shown.sort_values("metric", ascending=not history.minimized, kind="stable")


def _ticks(leaf: Leaf) -> list[tuple[float, str]]:
    """Gives places from 0 to 1 with the values there."""
    if isinstance(leaf, Categorical):
        return [(place(leaf, value), str(value)) for value in leaf.vals[:12]]
    low, high = float(leaf.minval), float(leaf.maxval)  # type: ignore[union-attr]  # a constant is not searched
    values = np.unique([low, (low + high) / 2, high])
    if isinstance(leaf, Int) or (isinstance(leaf, Log) and int(high) > int(low)):
        whole = style.few_ticks(_MOST_TICKS - 2 * isinstance(leaf, Log)).tick_values(low, high)
        values = whole[(whole >= low) & (whole <= high)]
    powers = [leaf.power(exponent) for exponent in values] if isinstance(leaf, Log) else values
    return [(place(leaf, value), f"{value:.6g}" if isinstance(leaf, Int) else f"{value:.3g}") for value in powers]


def _limit_metric(axis: Axes, history: SearchHistory, values: pd.Series) -> float:
    """Limits the metric's axis to the range where trials differ; returns its worst end."""
    low, high = _limits(history, values)
    margin = 0.04 * (high - low)
    hidden = (np.isfinite(values) & ~values.between(low, high)).sum()
    axis.set_ylim(low - margin, high + margin)
    axis.grid(axis="y", color=_GRID, linewidth=0.8)
    axis.set_axisbelow(True)
    if hidden:
        height, side = (0.98, "top") if history.minimized else (0.02, "bottom")
        note = f"{hidden} worse values are outside", (0.99, height)
        axis.annotate(*note, xycoords="axes fraction", ha="right", va=side, fontsize=8, color=_SOFT)
    return high + margin if history.minimized else low - margin


def _limits(history: SearchHistory, values: pd.Series) -> tuple[float, float]:
    """From the best value to the worst, or so far beyond the median that the others can still be distinguished."""
    losses = np.sort(values[np.isfinite(values)]) if history.minimized else np.sort(-values[np.isfinite(values)])
    best, spread = float(losses[0]), float(np.median(losses) - losses[0])
    worst = min(float(losses[-1]), best + _SPREADS_SHOWN * spread) if spread > 0 else float(losses[-1])
    if worst <= best:
        worst = best + (abs(best) * 0.05 or 1.0)
    return (best, worst) if history.minimized else (-worst, -best)


def _time_unit(seconds: float) -> tuple[float, str]:
    return (3600.0, "hours") if seconds >= 3 * 3600 else (60.0, "minutes") if seconds >= 180 else (1.0, "seconds")
