"""A search as its journal has it: DataFrames that the page, its plots and the importance are made from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InvalidArgumentError
from ...training.configuration.experiment import ExperimentConfig
from ...training.configuration.hyperparameters import Categorical, Leaf, Log
from ...training.configuration.space import Space
from ..brackets import rungs_of
from ..journal import JOURNAL_FOLDER, Trials, TrialState, read_events
from ..settings import read_sections, searcher_section

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class SearchHistory:
    """A search."""

    config: ExperimentConfig  # Its experiment
    found: Trials  # Its trials
    start: float  # Of the first event, in seconds since the epoch
    end: float  # Of the last one
    finished: bool  # Whether it has ended normally

    @cached_property
    def metric(self) -> str:
        """Name of the metric that decides."""
        return self.config.goal.metric

    @cached_property
    def minimized(self) -> bool:
        """Whether a smaller value of the metric is better."""
        return self.config.goal.mode == "min"

    @cached_property
    def unit(self) -> str:
        """Unit of lengths."""
        return self.config.searcher.max_length.unit

    def lengths(self, amount: float) -> str:
        """Writes a length with its unit."""
        return f"{amount:g} {self.unit if amount != 1 else self.unit.removesuffix('s')}"

    @cached_property
    def rungs(self) -> list[float]:
        """Lengths at which the searcher looks at trials, shortest first."""
        settings = read_sections(searcher_section(self.config), self.config.hyperparameters).searcher
        return sorted({float(length) for bracket in rungs_of(settings) for length in bracket})

    def rung_of(self, length: float) -> int:
        """Index of the last rung that a length has reached; 0 before the first."""
        return max((index for index, rung in enumerate(self.rungs) if rung <= length), default=0)

    def ends(self, lengths: pd.Series[float]) -> dict[int, str]:
        """Writes the lengths of trials by the rung at which each ended, by the rung's index."""
        groups = lengths.groupby(lengths.map(self.rung_of))
        bounds = {int(rung): (of_rung.min(), of_rung.max()) for rung, of_rung in groups}
        return {
            rung: self.lengths(most) if least == most else f"{least:g} to {self.lengths(most)}"
            for rung, (least, most) in bounds.items()
        }

    @cached_property
    def best(self) -> TrialState | None:
        """The trial with the best validation; None if none gave a number."""
        return self.found.best()

    @cached_property
    def axes(self) -> dict[str, Leaf]:
        """The hyperparameters that were searched, by dotted path."""
        leaves = Space.read(self.config.hyperparameters).leaves()
        return {".".join(path): leaf for path, leaf in leaves if leaf.type != "const"}

    @cached_property
    def trials(self) -> pd.DataFrame:
        """A row for each trial, by number: `state`, `length`, `metric` (of its last validation) and `error`."""
        import pandas as pd

        rows = [
            (trial.state, trial.length, trial.last.metric if trial.last is not None else math.nan, trial.error or "")
            for trial in self.found.all
        ]
        return pd.DataFrame(rows, columns=["state", "length", "metric", "error"])

    @cached_property
    def values(self) -> pd.DataFrame:
        """The hyperparameters of each trial, a column for each of `axes`."""
        import pandas as pd

        values = {name: [_value_at(trial, name) for trial in self.found.all] for name in self.axes}
        return pd.DataFrame(values, dtype=object)

    @cached_property
    def places(self) -> pd.DataFrame:
        """The places of these values between the bounds of each hyperparameter, 0 to 1."""
        columns = {name: [place(leaf, value) for value in self.values[name]] for name, leaf in self.axes.items()}
        return self.values.assign(**columns).astype(float)

    @cached_property
    def curves(self) -> pd.DataFrame:
        """A row for each validation: `trial`, `length` and `metric`, in the order of length."""
        import pandas as pd

        rows = [
            (trial.number, length, trial.curve[length].metric)
            for trial in self.found.all
            for length in sorted(trial.curve)
        ]
        return pd.DataFrame(rows, columns=["trial", "length", "metric"])

    @cached_property
    def drawn(self) -> pd.DataFrame:
        """The trials that have a validation whose metric is a number, in the order of length."""
        curves = self.curves
        return self.trials.loc[curves.loc[curves["metric"].map(math.isfinite), "trial"].unique()].sort_values("length")

    @cached_property
    def spans(self) -> pd.DataFrame:
        """A row for each slot of each span: `start` and `end` in seconds, the `length` reached then, `failed`."""
        import pandas as pd

        rows = [
            (trial.number, slot, span.start - self.start, span.end - self.start, span.length, span.failed)
            for trial in self.found.all
            for span in trial.spans
            for slot in span.slots
        ]
        return pd.DataFrame(rows, columns=["trial", "slot", "start", "end", "length", "failed"])


def read_history(folder: Path) -> SearchHistory:
    """Reads the journal of a search."""
    events = read_events(folder / JOURNAL_FOLDER)
    if events[0]["event"] != "started":
        raise InvalidArgumentError(f"the journal in {folder} does not begin with the event `started`")
    config = ExperimentConfig.read(events[0]["config"])
    found = Trials(config.goal)
    found.apply(events)
    found.close()
    return SearchHistory(config, found, events[0]["time"], events[-1]["time"], events[-1]["event"] == "finished")


def place(leaf: Leaf, value: Any) -> float:
    """Finds where a value is between the bounds of its hyperparameter, 0 to 1; listed values have equal distances."""
    if isinstance(leaf, Categorical):
        return [str(each) for each in leaf.vals].index(str(value)) / max(len(leaf.vals) - 1, 1)
    low, high = float(leaf.minval), float(leaf.maxval)  # type: ignore[union-attr]  # a constant is not searched
    number = math.log(value, leaf.base) if isinstance(leaf, Log) else float(value)
    return (number - low) / (high - low) if high > low else 0.5


def _value_at(trial: TrialState, dotted: str) -> Any:
    value: Any = trial.hyperparameters
    for name in dotted.split("."):
        value = value[name]
    return value
