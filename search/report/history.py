"""A search as recorded in its journal: hyperparameters, times, slots and metrics of its trials."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ...errors import InvalidArgumentError
from ...training.configuration.experiment import ExperimentConfig
from ...training.configuration.hyperparameters import Leaf
from ...training.configuration.space import Space
from ..journal import JOURNAL_FOLDER, read_events
from ..preview import preview
from ..settings import searcher_section
from ..trials import Span, Trials


@dataclass
class TrialHistory:
    """One trial.

    Attributes:
        number: From 0, in the order of creation.
        hyperparameters: Its values, nested.
        state: `waiting`, `running`, `paused`, `stopped`, `completed`, `failed` or `invalid`.
        curve: Lengths with the metric there, in the order of length; NaN and infinities as they were.
        spans: When it held slots.
        error: Why it failed, else empty.
        diverged: Whether its loss or output was not finite, so that it is never the best.
    """

    number: int
    hyperparameters: dict[str, Any]
    state: str = "waiting"
    curve: dict[float, float] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    error: str = ""
    diverged: bool = False

    @property
    def length(self) -> float:
        """The length at which it was validated last; 0 before that."""
        return max(self.curve, default=0)

    @property
    def last(self) -> float:
        """Its metric at that length; NaN without one."""
        return self.curve[self.length] if self.curve else math.nan


@dataclass
class SearchHistory:
    """A search.

    Attributes:
        config: Its experiment.
        trials: In the order of creation.
        start: Of the first event, in seconds since the epoch.
        end: Of the last one.
        finished: Whether it has ended normally.
    """

    config: ExperimentConfig
    trials: list[TrialHistory]
    start: float
    end: float
    finished: bool

    @cached_property
    def metric(self) -> str:
        """Name of the metric that decides."""
        return self.config.goal.metric

    @cached_property
    def unit(self) -> str:
        """Unit of lengths."""
        return self.config.searcher.max_length.unit

    def lengths(self, amount: float) -> str:
        """Writes a length with its unit."""
        return f"{amount:g} {self.unit if amount != 1 else self.unit.removesuffix('s')}"

    @cached_property
    def minimized(self) -> bool:
        """Whether a smaller value of the metric is better."""
        return self.config.goal.mode == "min"

    @cached_property
    def rungs(self) -> list[float]:
        """Lengths at which the searcher looks at trials, shortest first."""
        return [float(length) for length in preview(searcher_section(self.config), self.config.hyperparameters)]

    def rung_of(self, length: float) -> int:
        """Index of the last rung that a length has reached; 0 before the first."""
        return max((index for index, rung in enumerate(self.rungs) if rung <= length), default=0)

    @cached_property
    def best(self) -> tuple[TrialHistory, float, float] | None:
        """The trial with the best finite metric, the length at which it had it, and that metric; None without any.

        Invalid trials and those whose loss or output was not finite are left out.
        """
        sign = 1 if self.minimized else -1
        found = [
            (sign * metric, trial.number, length)
            for trial in self.trials
            if trial.state != "invalid" and not trial.diverged
            for length, metric in trial.curve.items()
            if math.isfinite(metric)
        ]
        if not found:
            return None
        value, number, length = min(found)
        return next(trial for trial in self.trials if trial.number == number), length, sign * value

    @cached_property
    def axes(self) -> dict[str, Leaf]:
        """The hyperparameters that were searched, by dotted path."""
        leaves = Space.read(self.config.hyperparameters).leaves()
        return {".".join(path): leaf for path, leaf in leaves if leaf.type != "const"}

    @cached_property
    def slots(self) -> list[int]:
        """Every slot that a trial has held."""
        return sorted({slot for trial in self.trials for span in trial.spans for slot in span.slots})


def value_at(hyperparameters: Mapping[str, Any], dotted: str) -> Any:
    """Takes the value of a hyperparameter by its dotted path."""
    value: Any = hyperparameters
    for name in dotted.split("."):
        value = value[name]
    return value


def read_history(folder: Path) -> SearchHistory:
    """Reads the journal of a search.

    Args:
        folder: The search's folder, with its journal.

    Raises:
        InvalidArgumentError: If the journal does not exist or lacks its beginning.
    """
    events = read_events(folder / JOURNAL_FOLDER)
    if not events or events[0]["event"] != "started":
        raise InvalidArgumentError(f"the journal in {folder} does not begin with the event `started`")
    config = ExperimentConfig.read(events[0]["config"])
    found = Trials(config.goal)
    found.apply(events)
    found.close()
    trials = [
        TrialHistory(
            trial.number,
            trial.hyperparameters,
            trial.state,
            {length: measured.metric for length, measured in trial.curve.items()},
            trial.spans,
            trial.error or "",
            trial.diverged,
        )
        for trial in found.all
    ]
    return SearchHistory(config, trials, events[0]["time"], events[-1]["time"], events[-1]["event"] == "finished")
