"""The style of all figures: size, colours, bars, ticks, names that fit. Needs matplotlib."""

from __future__ import annotations

import functools
import io
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import MissingDependencyError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colour-blind safe (Okabe and Ito, 2008, then Tol's muted), in the order of the splits: enough for ten folds.
SPLIT_COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"),
    *("#332288", "#999933", "#882255", "#44AA99", "#999999"),
)
INK, SINGLE = "#333333", "#4b6a88"
LABEL_LENGTH = 28
# Characters of a tick label that fit next to each other across a whole figure.
FIGURE_CHARACTERS = 95
_DPI, _WIDTH_INCHES = 144, 9.0
_FONT, _ELLIPSIS = "DejaVu Sans", "…"


def empty_figure(width: float, height: float, dpi: int = _DPI) -> Figure:
    """Makes a figure without axes, which no window shows."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError("figures need matplotlib: pip install 'lakelens[search]'") from error
    figure = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def new_figure(height: float, columns: int = 1, ratios: Sequence[float] | None = None) -> tuple[Figure, Any]:
    """Makes a figure with axes next to each other."""
    figure = empty_figure(_WIDTH_INCHES, height)
    axes = figure.subplots(1, columns, squeeze=False, width_ratios=ratios)[0]
    for axis in axes:
        dress_axis(axis)
    return figure, axes


def dress_axis(axis: Axes) -> None:
    """Gives an axis the look that all plots have."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color("#999999")
    axis.tick_params(colors=INK, labelsize=9, length=3)


def to_png(figure: Figure) -> bytes:
    """Renders a figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def colours_of(splits: Iterable[str]) -> dict[str, str]:
    """Assigns a colour to each split; splits after the tenth share one."""
    return {split: SPLIT_COLOURS[min(index, len(SPLIT_COLOURS) - 1)] for index, split in enumerate(splits)}


def draw_bars(
    axis: Axes,
    counts: pd.DataFrame,
    colours: Sequence[str],
    stacked: bool = True,
    ticks: int = 8,
    note: str = "{:,.0f}",
) -> None:
    """Draws horizontal bars with their values, the first row at the top."""
    places, left = np.arange(len(counts)), np.zeros(len(counts))
    height = 0.78 if stacked else 0.78 / counts.shape[1]
    offsets = (
        np.zeros(counts.shape[1]) if stacked else (np.arange(counts.shape[1]) - (counts.shape[1] - 1) / 2) * height
    )
    labels = texts_of(list(map(str, counts.columns)))
    for (_, values), label, colour, offset in zip(counts.items(), labels, colours, offsets, strict=False):
        axis.barh(places + offset, values, left=left if stacked else None, height=height, color=colour, label=label)
        left = left + values.to_numpy() if stacked else values.to_numpy()
        if not stacked or label == labels[-1]:
            for place, total in zip(places + offset, left, strict=True):
                text, end = ("-", 0) if np.isnan(total) else (note.format(total), total)
                axis.annotate(text, (end, place), (3, 0), textcoords="offset points", va="center", fontsize=8)
    axis.set_yticks(places, texts_of([str(name) for name in counts.index]))
    axis.set_ylim(len(counts) - 0.4, -0.6)
    axis.margins(x=0.14)
    axis.xaxis.set_major_locator(few_ticks(ticks))
    axis.xaxis.set_major_formatter("{x:,.0f}")


def draw_steps(axis: Axes, heights: pd.DataFrame, colours: Sequence[str]) -> None:
    """Draws the columns of a frame on top of each other, a step for each row."""
    edges, low = np.arange(len(heights) + 1), np.zeros(len(heights))
    labels = texts_of(list(map(str, heights.columns)))
    for (_, values), label, colour in zip(heights.items(), labels, colours, strict=False):
        high = low + values.to_numpy()
        axis.stairs(high, edges, baseline=low, fill=True, color=colour, label=label, linewidth=0)
        low = high
    axis.set_xlim(0, len(heights))
    axis.set_ylim(bottom=0)


def draw_histogram(axis: Axes, values: Any, bins: int, bounds: tuple[float, float]) -> None:
    """Draws how many values lie in equal bins; values outside of the bounds count in the first or last bin."""
    axis.hist(np.clip(values, *bounds), bins=bins, range=bounds, color=SINGLE)
    axis.set_xlim(*bounds)
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.yaxis.set_major_locator(few_ticks(5))


def draw_shares(axis: Axes, shares: pd.DataFrame, colours: Sequence[str], names: Sequence[str]) -> None:
    """Draws values from 0 to 1 as bars next to each other."""
    draw_bars(axis, shares, colours, stacked=False, note="{:.2f}")
    axis.set_yticks(range(len(names)), names)
    axis.set_xlim(0, 1.1)
    axis.set_xticks(np.linspace(0, 1, 6))
    axis.xaxis.set_major_formatter("{x:.1f}")


def few_ticks(most: int) -> Any:
    """Places ticks at whole numbers, `most` of them or fewer."""
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=most, integer=True, min_n_ticks=1)


def name_ticks(axis: Axes, places: Any, names: Sequence[str], characters: int, above: bool = False) -> None:
    """Labels the ticks of x; turns the labels if `characters` next to each other are too few for them."""
    turned: dict[str, Any] = {"rotation": 30, "ha": "left" if above else "right", "rotation_mode": "anchor"}
    axis.set_xticks(places, names, **(turned if max(map(len, names)) * len(names) > characters else {}))


def name_axes(axis: Axes, x: str, y: str, title: str = "") -> None:
    """Writes what the axes and the plot show."""
    axis.set_xlabel(x, fontsize=9, color=INK)
    axis.set_ylabel(y, fontsize=9, color=INK)
    axis.set_title(title, fontsize=10, color=INK, loc="left")


def draw_legend(figure: Figure, axis: Axes) -> None:
    """Writes the legend of the axes above them, if there are several colours."""
    handles, names = axis.get_legend_handles_labels()
    if len(names) > 1:
        columns = max(1, min(len(names), FIGURE_CHARACTERS // (max(map(len, names)) + 6)))
        figure.legend(handles, names, frameon=False, fontsize=9, loc="outside upper left", ncols=columns)


def texts_of(names: Sequence[str], length: int = LABEL_LENGTH) -> list[str]:
    """Makes names that appear together fit for a figure; matplotlib would read text between dollar signs as formula."""
    return [name.replace("$", r"\$") for name in readable_names(names, length)]


def text_of(name: str, length: int = LABEL_LENGTH) -> str:
    """Makes one name fit for a figure, as `texts_of`; a long one is cut in its middle."""
    return readable(name, length).replace("$", r"\$")


def readable(name: str, length: int = LABEL_LENGTH) -> str:
    """Replaces characters that the font lacks, and cuts a name that is too long in its middle."""
    return _both_ends(_drawable(name), length)


def readable_names(names: Sequence[str], length: int = LABEL_LENGTH) -> list[str]:
    """Shortens names that appear together where they do not differ: `…/sports/model 1`, `n01440764 te…`."""
    texts = [_drawable(name) for name in names]
    if all(len(text) <= length for text in texts):
        return texts
    first, last = min(texts), max(texts)
    shared = next((place for place, (one, two) in enumerate(zip(first, last, strict=False)) if one != two), len(first))
    cuts: list[Callable[[str, int], str]] = [
        _head,
        lambda text, most: _ELLIPSIS + text[1 - most :].lstrip(),
        lambda text, most: _head(_ELLIPSIS + text[shared:], most),
        _both_ends,
    ]
    shortened = [[cut(text, length) if len(text) > length else text for text in texts] for cut in cuts]
    unique = [{text for text, count in Counter(found).items() if count == 1} for found in shortened]
    return [
        next((text for text, alone in zip(tried, unique, strict=True) if text in alone), tried[-1])
        for tried in zip(*shortened, strict=True)
    ]


def _head(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1].rstrip() + _ELLIPSIS


def _both_ends(text: str, length: int) -> str:
    end = length // 2
    return text if len(text) <= length else f"{text[: length - end - 1]}{_ELLIPSIS}{text[-end:]}"


def _drawable(name: str) -> str:
    known = _known_characters()
    return "".join(character if ord(character) in known else "□" for character in name)


@functools.lru_cache(maxsize=1)
def _known_characters() -> frozenset[int]:
    from matplotlib.font_manager import findfont, get_font

    return frozenset(get_font(findfont(_FONT)).get_charmap())
