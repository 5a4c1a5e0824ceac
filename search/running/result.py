"""What a search has found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...options import flat
from ...results import ReadableResult
from ..journal import TrialState

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class SearchResult(ReadableResult):
    """What a search has found.

    Attributes:
        run_id: Its MLflow run, which holds the best trial's checkpoint and model.
        experiment_id: The experiment of all its runs.
        tracking_uri: Their store.
        table: Path or URI of the table.
        version: The version that all trials read.
        best_trial: Number of the best trial.
        best_run: Its MLflow run.
        metric: Name of the metric that decided.
        value: Its best value.
        hyperparameters: The best trial's.
        checkpoint: Folder of its best checkpoint.
        digest: The checkpoint's digest.
        states: Number of trials by state.
        seconds: From the call to this result.
    """

    run_id: str
    experiment_id: str
    tracking_uri: str
    table: str
    version: int
    best_trial: int
    best_run: str
    metric: str
    value: float
    hyperparameters: Mapping[str, Any]
    checkpoint: str
    digest: str
    states: Mapping[str, int]
    seconds: float
    _trials: Sequence[TrialState] = field(repr=False, default=())

    def best(self) -> dict[str, Any]:
        """Gives the best trial: its number, run, hyperparameters, metric and checkpoint."""
        return {
            "trial": self.best_trial,
            "run_id": self.best_run,
            "hyperparameters": dict(self.hyperparameters),
            self.metric: self.value,
            "checkpoint": self.checkpoint,
        }

    def trials(self) -> pd.DataFrame:
        """Gives the trials as a pandas DataFrame, a row each.

        Columns: `trial`, `state`, `run_id`, `length` (of its last validation), `last` and `best` (the metric),
        `best_length`, `restarts`, `error`, and one for each hyperparameter, with dots in the names of nested ones.
        """
        import pandas as pd

        return pd.DataFrame([_row(trial) for trial in self._trials])


def _row(trial: TrialState) -> dict[str, Any]:
    last, best = trial.last, trial.best
    return {
        "trial": trial.number,
        "state": trial.state,
        "run_id": trial.run_id,
        "length": trial.length,
        "last": last.metric if last is not None else None,
        "best": best.metric if best is not None else None,
        "best_length": best.length if best is not None else None,
        "restarts": trial.restarts,
        "error": trial.error,
        **flat(trial.hyperparameters, "hyperparameters."),
    }
