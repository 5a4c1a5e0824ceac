"""Shows a running search: a line for each running trial and a summary; in a log plain lines."""

from __future__ import annotations

import importlib
import shutil
import sys
import textwrap
import time
from collections.abc import Mapping
from typing import Any, Protocol, TextIO

from ...progress import in_notebook
from ..searchers.base import SearchMethod
from .result import flat
from .state import SearchState
from .trial_state import ENDED, PAUSED, RUNNING, WAITING, TrialState

_LOG_EVERY_S = 30.0
_DRAW_EVERY_S = 0.5
_BAR = 12


class Display(Protocol):
    """Shows a search."""

    def say(self, text: str, *, detail: bool = False) -> None:
        """Shows a line; details come from ranks."""

    def show(self, lines: list[str], *, last: bool = False) -> None:
        """Shows the state: a line for each running trial, and the summary last.

        Args:
            lines: One for each running trial, then the summary.
            last: Shows them at once, as the final state.
        """


class LogDisplay:
    """Plain lines, the summary every half minute."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._due = time.monotonic() + _LOG_EVERY_S

    def say(self, text: str, *, detail: bool = False) -> None:
        """Prints a line."""
        self._stream.write(text + "\n")
        self._stream.flush()

    def show(self, lines: list[str], *, last: bool = False) -> None:
        """Prints the summary when it is due."""
        if last or time.monotonic() >= self._due:
            self._due = time.monotonic() + _LOG_EVERY_S
            self.say(lines[-1])


class TerminalDisplay:
    """Lines at the bottom of a terminal that are redrawn in place."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._drawn: list[str] = []
        self._due = 0.0

    def say(self, text: str, *, detail: bool = False) -> None:
        """Prints a line above; details are in the lines below."""
        if not detail:
            self._draw([text], then=self._drawn)

    def show(self, lines: list[str], *, last: bool = False) -> None:
        """Redraws the lines, up to the height of the terminal."""
        if last or time.monotonic() >= self._due:
            self._due = time.monotonic() + _DRAW_EVERY_S
            self._draw([], then=_fitting(lines, *shutil.get_terminal_size()))
            if last:
                self._drawn = []

    def _draw(self, above: list[str], then: list[str]) -> None:
        up = f"\x1b[{len(self._drawn)}F" if self._drawn else ""
        self._stream.write(f"{up}\x1b[J" + "".join(line + "\n" for line in [*above, *then]))
        self._stream.flush()
        self._drawn = list(then)


def _fitting(lines: list[str], columns: int, rows: int) -> list[str]:
    """Cuts lines to the size of the terminal, because the cursor can move back only over lines still on the screen."""
    width = max(2, columns - 1)
    summary = textwrap.wrap(lines[-1], width)
    trials = [line if len(line) <= width else f"{line[: width - 1]}…" for line in lines[:-1]]
    most = max(1, rows - 1 - len(summary))
    if len(trials) > most:
        trials = [*trials[: most - 1], f"... and {len(trials) - most + 1} more"]
    return [*trials, *summary]


class NotebookDisplay:
    """One output of a notebook's cell, updated in place."""

    def __init__(self) -> None:
        display = importlib.import_module("IPython.display").display
        self._said: list[str] = []
        self._lines: list[str] = []
        self._handle: Any = display(_plain("search"), raw=True, display_id=True)
        self._due = 0.0

    def say(self, text: str, *, detail: bool = False) -> None:
        """Shows a line above the state, the last ten of them."""
        if not detail:
            self._said = [*self._said, text][-10:]
            self._update()

    def show(self, lines: list[str], *, last: bool = False) -> None:
        """Shows the lines."""
        if last or time.monotonic() >= self._due:
            self._due = time.monotonic() + 2 * _DRAW_EVERY_S
            self._lines = lines
            self._update()

    def _update(self) -> None:
        self._handle.update(_plain("\n".join([*self._said, "", *self._lines])), raw=True)


def _plain(text: str) -> dict[str, str]:
    return {"text/plain": text}


def display_for(stream: TextIO | None = None) -> Display:
    """Chooses how a search is shown: in a notebook, a terminal or a log.

    Args:
        stream: Where to write; stderr by default.
    """
    stream = stream or sys.stderr
    if in_notebook():
        return NotebookDisplay()
    return TerminalDisplay(stream) if stream.isatty() else LogDisplay(stream)


def lines_of(state: SearchState, metric: str, seconds: float, done_before: float) -> list[str]:
    """Describes a search.

    Args:
        state: The search.
        metric: The metric that decides.
        seconds: How long it has run.
        done_before: Its progress when it began to.
    """
    with state.changed:
        searcher = state.searcher
        running = [trial for trial in state.trials if trial.state == RUNNING]
        return [
            *(_line(trial, searcher, metric) for trial in running),
            _summary(state, metric, seconds, done_before),
        ]


def _line(trial: TrialState, searcher: SearchMethod, metric: str) -> str:
    whole = searcher.settings.max_length
    filled = min(_BAR, int(_BAR * trial.length / whole.amount))
    value = f"{metric} {trial.last.metric:.4g}" if trial.last is not None else f"{metric} -"
    slots = ",".join(str(slot) for slot in trial.slots)
    return (
        f"trial {trial.number:<4} [{'#' * filled}{'-' * (_BAR - filled)}] {trial.length:g}/{trial.asked} "
        f"{whole.unit}  {value}  slot {slots}  {described(trial.hyperparameters, searcher)}"
    )


def _summary(state: SearchState, metric: str, seconds: float, done_before: float) -> str:
    progress, best = state.searcher.progress, state.best()
    text = (
        f"search {progress:.0%}: {length_text(state.count(*ENDED), 'trials')} done, {state.count(RUNNING)} running, "
        f"{state.count(PAUSED)} paused, {state.count(WAITING)} waiting"
    )
    gained = progress - done_before
    if gained > 0 and progress < 1:
        text += f"; about {_duration(seconds * (1 - progress) / gained)} left"
    if best is not None and best.best is not None:
        given = described(best.hyperparameters, state.searcher)
        text += f"; best {metric} {best.best.metric:.4g}: trial {best.number}, {given}"
    return text


def length_text(length: float, unit: str) -> str:
    """Writes a length with its unit."""
    return f"{length:g} {unit.removesuffix('s') if length == 1 else unit}"


def described(hyperparameters: Mapping[str, Any], searcher: SearchMethod) -> str:
    """Writes the hyperparameters that are searched as a line; omits those that all trials share."""
    leaves = searcher.definition.space.leaves()
    searched = tuple(".".join(path) + "." for path, leaf in leaves if leaf.type != "const")
    return " ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in flat(hyperparameters).items()
        if f"{name}.".startswith(searched)
    )


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"
