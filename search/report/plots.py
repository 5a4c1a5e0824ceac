"""The plots of a search, as PNG bytes; pure. Only this module of the report needs matplotlib.

Plots are small, with text that stays readable at one plot per row on a phone and two on a screen.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from ...errors import MissingDependencyError
from ...figures import INK, dress_axis, empty_figure, readable
from ...training.configuration.hyperparameters import Categorical, Int, Leaf, Log
from .history import SearchHistory, TrialHistory, value_at

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SOFT, _GRID, _FAILED = "#767676", "#e3e3e3", "#9a9a9a"
_BEST = "#d55e00"  # Okabe and Ito's vermillion, apart from every colour of viridis also to the colour-blind
_DPI = 160
_WIDTH, _HEIGHT, _WIDE = 6.2, 3.9, 10.0
_FONT = "DejaVu Sans"
METRIC_BY = "metric_by_"  # begins the names of plots
MOST_AXES = 8  # of the parallel coordinates; the most important hyperparameters are drawn first
_MOST_SLOTS_NAMED = 24
_SPREADS_SHOWN = 15  # so that a diverged loss does not compress the others


def draw_plots(history: SearchHistory, importance: dict[str, float]) -> dict[str, bytes]:
    """Draws what a search has data for.

    Args:
        history: The search.
        importance: Of each hyperparameter, most important first; empty where it is not known.

    Returns:
        PNG files by name without suffix: `learning_curves`, `parallel_coordinates`, `importance`, `slots`, and
        `metric_by_<hyperparameter>`.

    Raises:
        MissingDependencyError: If matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise MissingDependencyError("the plots of a search need matplotlib: pip install 'lakelens[search]'") from error
    order = [*importance, *(name for name in history.axes if name not in importance)]
    plots: dict[str, bytes] = {}
    # Names and values of hyperparameters are plain text, even if they contain characters of formulas.
    with mpl.rc_context({"font.family": _FONT, "text.parse_math": False}):
        if history.best is not None:
            plots["learning_curves"] = _png(_learning_curves(history))
            if order:
                plots["parallel_coordinates"] = _png(_parallel_coordinates(history, order[:MOST_AXES]))
            plots |= {METRIC_BY + name: _png(_metric_by(history, name)) for name in order}
        if importance:
            plots["importance"] = _png(_importance(importance))
        if history.slots:
            plots["slots"] = _png(_slots(history))
    return plots


def rung_colours(count: int) -> list[str]:
    """Gives a colour for each rung, darker with its length; in grey print and to the colour-blind, too."""
    import matplotlib as mpl

    places = np.linspace(0.8, 0.05, count) if count > 1 else [0.3]
    return [mpl.colors.to_hex(mpl.colormaps["viridis"](place)) for place in places]


def _learning_curves(history: SearchHistory) -> Figure:
    figure, axis = _figure(_WIDTH, _HEIGHT)
    colours, rungs = rung_colours(len(history.rungs)), history.rungs
    shown = [trial for trial in history.trials if any(map(math.isfinite, trial.curve.values()))]
    alpha = min(0.9, max(0.25, 24 / len(shown)))
    for trial in sorted(shown, key=lambda each: each.length):
        _curve(axis, trial, color=colours[history.rung_of(trial.length)], alpha=alpha, linewidth=1.2)
    best = history.best
    if best is not None:
        trial, length, metric = best
        _curve(axis, trial, color=_BEST, linewidth=2.4, label=f"best: trial {trial.number}")
        axis.plot([length], [metric], "o", color=_BEST, markersize=6, zorder=5)
    for index, rung in enumerate(rungs):
        reached = sum(trial.length >= rung for trial in shown)
        axis.plot([], [], color=colours[index], linewidth=2.4, label=f"{history.lengths(rung)}: {reached}")
    longest = max(trial.length for trial in shown)
    if 0 < 20 * min(min(trial.curve) for trial in shown) <= longest:
        axis.set_xscale("log")
        axis.set_xticks([rung for rung in rungs if rung <= longest], minor=False)
        axis.set_xticks([], minor=True)
        axis.xaxis.set_major_formatter("{x:g}")
    axis.set_xlabel(history.unit)
    _metric_axis(axis, history, [value for trial in shown for value in trial.curve.values()])
    _legend(figure, axis.get_legend_handles_labels()[0], "trials that reached")
    return figure


def _curve(axis: Axes, trial: TrialHistory, **style: Any) -> None:
    lengths = sorted(trial.curve)
    marker = "o" if len(lengths) == 1 else None
    axis.plot(lengths, [trial.curve[length] for length in lengths], marker=marker, markersize=3.5, **style)


def _parallel_coordinates(history: SearchHistory, names: Sequence[str]) -> Figure:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    figure, axis = _figure(max(_WIDTH, 1.5 * len(names) + 2.2), 4.3)
    metrics = {trial.number: trial.last for trial in history.trials if math.isfinite(trial.last)}
    low, high = _limits(history, list(metrics.values()))
    norm, colormap = Normalize(low, high), "viridis" if not history.minimized else "viridis_r"
    scales = [_Scale(history, name) for name in names]
    shown = [trial for trial in history.trials if trial.number in metrics]
    best = history.best[0] if history.best is not None else None
    # The better a trial, the later it is drawn, on top of the others.
    shown.sort(key=lambda trial: metrics[trial.number], reverse=history.minimized)
    mapping = ScalarMappable(norm, colormap)
    alpha = min(0.85, max(0.25, 25 / len(shown)))
    for trial in shown:
        places = [scale.place(value_at(trial.hyperparameters, scale.name)) for scale in scales]
        metric = min(max(norm(metrics[trial.number]), 0.0), 1.0)
        is_best = trial is best
        colour, width = (_BEST, 2.6) if is_best else (mapping.cmap(metric), 1.1)
        axis.plot([*places, metric], color=colour, linewidth=width, alpha=1 if is_best else alpha, zorder=2 + is_best)
    for index, scale in enumerate(scales):
        axis.axvline(index, color=_SOFT, linewidth=0.8, zorder=1)
        for place, text in scale.ticks():
            _tag(axis, index, place, text)
    axis.axvline(len(scales), color=_SOFT, linewidth=0.8, zorder=1)
    for share in (0, 0.25, 0.5, 0.75, 1):
        _tag(axis, len(scales), share, f"{low + share * (high - low):.3g}")
    axis.set_xticks(range(len(scales) + 1), [*(_wrapped(name) for name in names), _wrapped(history.metric)])
    axis.tick_params(axis="x", length=0, labelsize=10, pad=6)
    axis.get_xticklabels()[-1].set_fontweight("bold")
    axis.set_yticks([])
    axis.spines[["left", "bottom"]].set_visible(False)
    axis.set_xlim(-0.25, len(scales) + 0.55)
    axis.set_ylim(-0.05, 1.05)
    return figure


def _tag(axis: Axes, x: float, y: float, text: str) -> None:
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
    axis.annotate(
        text, (x, y), (4, 0), textcoords="offset points", va="center", fontsize=9, color=INK, bbox=box, zorder=4
    )


def _metric_by(history: SearchHistory, name: str) -> Figure:
    figure, axis = _figure(_WIDTH * 0.82, 3.3)
    scale, colours = _Scale(history, name), rung_colours(len(history.rungs))
    shown = [trial for trial in history.trials if math.isfinite(trial.last)]
    shown.sort(key=lambda trial: trial.length)
    places = [scale.position(value_at(trial.hyperparameters, name), trial.number) for trial in shown]
    lasts = [trial.last for trial in shown]
    colour = [colours[history.rung_of(trial.length)] for trial in shown]
    axis.scatter(places, lasts, c=colour, s=max(14, min(42, 2400 / len(shown))), linewidths=0.4, edgecolors="white")
    best = history.best
    if best is not None:
        trial, _, metric = best
        place = scale.position(value_at(trial.hyperparameters, name), trial.number)
        axis.scatter([place], [metric], s=90, facecolors="none", edgecolors=_BEST, linewidths=2, zorder=4)
    if isinstance(scale.leaf, Log):
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
    if isinstance(scale.leaf, Categorical):
        axis.set_xticks(range(len(scale.names)), [readable(text, 12) for text in scale.names])
        axis.set_xlim(-0.5, len(scale.names) - 0.5)
        if len(scale.names) > 4:
            axis.tick_params(axis="x", rotation=35)
    axis.set_xlabel(readable(name, 48))
    failed = [trial for trial in history.trials if not math.isfinite(trial.last)]
    low = _metric_axis(axis, history, lasts)
    if failed:
        places = [scale.position(value_at(trial.hyperparameters, name), trial.number) for trial in failed]
        axis.scatter(places, [low] * len(failed), marker="x", c=_FAILED, s=28, linewidths=1.3, clip_on=False, zorder=3)
    return figure


def _importance(importance: dict[str, float]) -> Figure:
    names = list(importance)[:20]
    figure, axis = _figure(_WIDTH, 0.34 * len(names) + 0.9)
    places = range(len(names))
    axis.barh(places, [importance[name] for name in names], color=rung_colours(1)[0], height=0.62)
    for place, name in zip(places, names, strict=True):
        axis.annotate(
            f"{importance[name]:.0%}", (importance[name], place), (4, 0), textcoords="offset points", va="center"
        )
    axis.set_yticks(places, [readable(name, 30) for name in names])
    axis.invert_yaxis()
    axis.set_xlim(0, 1.14 * max(*importance.values(), 0.01))
    axis.xaxis.set_visible(False)
    axis.spines["bottom"].set_visible(False)
    axis.tick_params(axis="y", length=0)
    return figure


def _slots(history: SearchHistory) -> Figure:
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Patch

    slots, colours = history.slots, rung_colours(len(history.rungs))
    height = min(0.42, 7.0 / len(slots))
    figure, axis = _figure(_WIDE, height * len(slots) + 1.2)
    divisor, unit = _time_unit(history.end - history.start)
    whole = (history.end - history.start) / divisor or 1.0
    rows = {name: index for index, name in enumerate(slots)}
    for trial in history.trials:
        for span in trial.spans:
            start, width = (span.start - history.start) / divisor, max((span.end - span.start) / divisor, whole / 1000)
            colour = _FAILED if span.failed else colours[history.rung_of(span.length)]
            hatch = "////" if span.failed else None
            for row in (rows[slot] for slot in span.slots):
                axis.barh(row, width, 0.8, start, color=colour, edgecolor="white", linewidth=0.6, hatch=hatch)
                if width > 0.012 * whole * len(str(trial.number)) and height > 0.2:
                    light = sum(to_rgb(colour)) > 1.5
                    colour_of_text = "black" if light else "white"
                    axis.text(
                        start + width / 2, row, str(trial.number), ha="center", va="center", fontsize=8,
                        color=colour_of_text,
                    )  # fmt: skip
    named = len(slots) <= _MOST_SLOTS_NAMED
    axis.set_yticks(range(len(slots)) if named else [], [f"slot {name}" for name in slots] if named else [])
    axis.set_ylabel("" if named else f"{len(slots)} slots")
    axis.invert_yaxis()
    axis.set_xlim(0, whole)
    axis.set_xlabel(unit)
    handles = [
        Patch(color=colour, label=f"to {history.lengths(rung)}")
        for colour, rung in zip(colours, history.rungs, strict=True)
    ]
    if any(span.failed for trial in history.trials for span in trial.spans):
        handles.append(Patch(facecolor=_FAILED, edgecolor="white", hatch="////", label="failed"))
    _legend(figure, handles)
    return figure


class _Scale:
    """Where the values of one hyperparameter are on an axis."""

    def __init__(self, history: SearchHistory, name: str) -> None:
        self.name, self.leaf = name, history.axes[name]
        self.names = [str(value) for value in self.leaf.vals] if isinstance(self.leaf, Categorical) else []

    def position(self, value: Any, trial: int) -> float:
        """The coordinate of a value; values of a category are adjacent."""
        if not self.names:
            return float(value)
        return self.names.index(str(value)) + 0.5 * ((trial * 0.618034) % 1 - 0.5)

    def place(self, value: Any) -> float:
        """The place of a value between 0 and 1."""
        if self.names:
            return self.names.index(str(value)) / max(len(self.names) - 1, 1)
        low, high = _bounds(self.leaf)
        number = math.log(value, self.leaf.base) if isinstance(self.leaf, Log) else float(value)
        return (number - low) / (high - low) if high > low else 0.5

    def ticks(self) -> list[tuple[float, str]]:
        """Places between 0 and 1 with the text there."""
        if self.names:
            step = max(len(self.names) - 1, 1)
            return [(index / step, readable(text, 10)) for index, text in enumerate(self.names)][:12]
        low, high = _bounds(self.leaf)
        values = {share: low + share * (high - low) for share in (0.0, 0.5, 1.0)}
        if isinstance(self.leaf, Int) and values[0.5] % 1:
            del values[0.5]
        if isinstance(self.leaf, Log):
            values = {share: self.leaf.power(exponent) for share, exponent in values.items()}
        return [(share, f"{value:.3g}") for share, value in values.items()]


def _bounds(leaf: Leaf) -> tuple[float, float]:
    low, high = leaf.minval, leaf.maxval  # type: ignore[union-attr]  # only numbers come here
    return float(low), float(high)


def _metric_axis(axis: Axes, history: SearchHistory, values: Sequence[float]) -> float:
    """Labels the metric's axis and limits it to the range where trials differ; returns its worst end."""
    low, high = _limits(history, values)
    margin = 0.04 * (high - low)
    hidden = sum(math.isfinite(value) and not low <= value <= high for value in values)
    axis.set_ylim(low - margin, high + margin)
    axis.set_ylabel(readable(history.metric, 30))
    axis.grid(axis="y", color=_GRID, linewidth=0.8)
    axis.set_axisbelow(True)
    if hidden:
        axis.annotate(
            f"{hidden} worse values are outside", (0.99, 0.02 if not history.minimized else 0.98), fontsize=8,
            xycoords="axes fraction", ha="right", va="bottom" if not history.minimized else "top", color=_SOFT,
        )  # fmt: skip
    return high + margin if history.minimized else low - margin


def _limits(history: SearchHistory, values: Sequence[float]) -> tuple[float, float]:
    """From the best value to the worst, or so far beyond the median that the others can still be distinguished."""
    finite = np.array([value for value in values if math.isfinite(value)])
    sign = 1.0 if history.minimized else -1.0
    ranked = np.sort(sign * finite)
    best, worst = ranked[0], ranked[-1]
    spread = np.median(ranked) - best
    worst = min(worst, best + _SPREADS_SHOWN * spread) if spread > 0 else worst
    if worst <= best:
        worst = best + (abs(best) * 0.05 or 1.0)
    low, high = sorted((sign * best, sign * worst))
    return float(low), float(high)


def _time_unit(seconds: float) -> tuple[float, str]:
    return (3600.0, "hours") if seconds >= 3 * 3600 else (60.0, "minutes") if seconds >= 180 else (1.0, "seconds")


def _wrapped(name: str) -> str:
    """Breaks a name after its dots and underscores into lines of at most a dozen letters."""
    lines = [""]
    for part in readable(name, 36).replace("_", "_\0").replace(".", ".\0").split("\0"):
        if len(lines[-1]) + len(part) > 13 and lines[-1]:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _legend(figure: Figure, handles: Sequence[Any], title: str | None = None) -> None:
    figure.legend(
        handles=handles, loc="outside upper center", ncols=3, frameon=False, fontsize=9, title=title,
        title_fontsize=9, handlelength=1.4, columnspacing=1.4,
    )  # fmt: skip


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = empty_figure(width, height, _DPI)
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    axis = figure.subplots()
    dress_axis(axis)
    axis.tick_params(labelsize=10)
    axis.xaxis.label.set_fontsize(10.5)
    axis.yaxis.label.set_fontsize(10.5)
    return figure, axis


def _png(figure: Figure) -> bytes:
    """Writes a figure with its own palette colours: a page of many plots stays small."""
    drawn, written = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png")
    Image.open(drawn).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(written, "PNG", optimize=True)
    return written.getvalue()
