"""What the plots of a profile are put together from: figures, histograms, ticks, legends. Needs matplotlib."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...errors import MissingDependencyError
from .data import Histogram
from .names import LABEL_LENGTH, NEEDS_MATPLOTLIB, readable, readable_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colour-blind safe (Okabe and Ito, 2008, then Tol's muted), in the order of the splits: enough for ten folds.
SPLIT_COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"),
    *("#332288", "#999933", "#882255", "#44AA99", "#999999"),
)
INK, SINGLE = "#333333", "#4b6a88"
_DPI = 144
_WIDTH = 9.0
# Letters of a tick's size, side by side, in a whole figure.
LETTERS_OF_ALL = 95


def new_figure(height: float, columns: int = 1, ratios: Sequence[float] | None = None) -> tuple[Figure, Any]:
    """Makes a figure of so many inches with axes side by side.

    Raises:
        MissingDependencyError: If matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(NEEDS_MATPLOTLIB) from error
    figure = Figure(figsize=(_WIDTH, height), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, columns, squeeze=False, gridspec_kw={"width_ratios": ratios} if ratios else None)[0]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color("#999999")
        axis.tick_params(colors=INK, labelsize=9, length=3)
    return figure, axes


def png_of(figure: Figure) -> bytes:
    """Renders a figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def draw_histogram(axis: Axes, histogram: Histogram | None, colour: str) -> None:
    """Draws counts between edges; hides the axes where there are none."""
    if histogram is None:
        axis.set_visible(False)
        return
    axis.stairs(histogram.counts, histogram.edges, fill=True, color=colour, linewidth=0)
    axis.set_xlim(histogram.edges[0], histogram.edges[-1])
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.yaxis.set_major_locator(few_ticks(5))


def few_ticks(most: int) -> Any:
    """Places ticks at whole numbers, at most so many."""
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=most, integer=True, min_n_ticks=1)


def name_ticks(axis: Axes, places: Any, names: Sequence[str], letters: int, above: bool = False) -> None:
    """Names ticks, aslant where as many letters as the axis is wide do not hold them side by side."""
    aslant = max(map(len, names)) * len(names) > letters
    turned: dict[str, Any] = (
        {"rotation": 30, "ha": "left" if above else "right", "rotation_mode": "anchor"} if aslant else {}
    )
    axis.set_xticks(places, names, **turned)


def draw_legend(figure: Figure, axis: Axes) -> None:
    """Names the colours of the axes above them, where there are several."""
    handles, names = axis.get_legend_handles_labels()
    if len(names) > 1:
        columns = max(1, min(len(names), LETTERS_OF_ALL // (max(map(len, names)) + 6)))
        figure.legend(handles, names, frameon=False, fontsize=9, loc="outside upper right", ncols=columns)


def name_axes(axis: Axes, x: str, y: str, title: str) -> None:
    """Names the axes, and what they show."""
    axis.set_xlabel(x, fontsize=9, color=INK)
    axis.set_ylabel(y, fontsize=9, color=INK)
    if title:
        axis.set_title(title, fontsize=10, color=INK, loc="left")


def text_of(name: str | None) -> str:
    """Makes a name safe for matplotlib, which takes text between dollar signs for a formula."""
    return _escaped(readable(name))


def texts_of(names: Sequence[str | None], length: int = LABEL_LENGTH) -> list[str]:
    """Makes names that stand together safe for matplotlib."""
    return [_escaped(name) for name in readable_names(names, length)]


def _escaped(text: str) -> str:
    return text.replace("$", r"\$")
