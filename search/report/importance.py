"""Importance of hyperparameters: permutation importance in a model of the metric. Needs scikit-learn."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import MissingDependencyError
from ...training.configuration.hyperparameters import Categorical, Leaf, Log
from .history import SearchHistory, value_at

FEWEST_TRIALS = 10
_FOLDS, _REPEATS, _TREES = 4, 5, 60
_LEAST_EXPLAINED = 0.05


@dataclass(frozen=True)
class Importance:
    """Importance of hyperparameters.

    Attributes:
        shares: By hyperparameter, most important first; they sum to 1. Empty if it cannot be estimated.
        explained: How much smaller the model's squared error is than with all hyperparameters permuted, on trials that
            it has not seen: 1 is all of it, 0 none.
        note: Why it cannot be estimated, else empty.
    """

    shares: dict[str, float] = field(default_factory=dict)
    explained: float = 0.0
    note: str = ""


def importance_of(history: SearchHistory) -> Importance:
    """Fits a random forest to the metrics' ranks and permutes one hyperparameter after the other.

    A row is a trial at one rung. The rung's length is an input next to the hyperparameters, because trials that trained
    longer are better for that reason alone. Everything is measured on trials held out of the fit. NaN ranks last.

    Raises:
        MissingDependencyError: If scikit-learn is not installed.
    """
    axes, trials = history.axes, [trial for trial in history.trials if trial.curve]
    if not axes or len(trials) < FEWEST_TRIALS or history.best is None:
        return Importance(note=f"{len(trials)} trials were validated; {FEWEST_TRIALS} are needed to estimate it.")
    try:
        from sklearn.ensemble import RandomForestRegressor
        from sklearn.model_selection import GroupKFold
    except ImportError as error:
        raise MissingDependencyError(
            "importance of hyperparameters needs scikit-learn: pip install 'lakelens[search]'"
        ) from error
    rows = [(trial, length) for trial in trials for length in {*history.rungs, trial.length} & trial.curve.keys()]
    columns = [
        [_number(leaf, value_at(trial.hyperparameters, name)) for trial, _ in rows] for name, leaf in axes.items()
    ]
    inputs = np.array([*columns, [math.log1p(length) for _, length in rows]]).T
    ranks = _ranks(history, [trial.curve[length] for trial, length in rows])
    every = list(range(len(axes)))
    random = np.random.default_rng(0)
    lost, lost_by_all, unexplained = np.zeros(len(axes)), 0.0, 0.0
    for fit, held_out in GroupKFold(_FOLDS).split(inputs, groups=[trial.number for trial, _ in rows]):
        forest = RandomForestRegressor(_TREES, min_samples_leaf=2, random_state=0).fit(inputs[fit], ranks[fit])

        def errors(permuted: list[int], forest: Any = forest, rows: Any = held_out) -> float:
            changed = inputs[rows]
            changed[:, permuted] = changed[random.permutation(len(rows))][:, permuted]
            return float(((forest.predict(changed) - ranks[rows]) ** 2).sum())

        unshuffled = errors([])
        unexplained += unshuffled
        for _ in range(_REPEATS):
            lost_by_all += errors(every) / _REPEATS
            lost += [(errors([column]) - unshuffled) / _REPEATS for column in every]
    explained, shares = 1 - unexplained / lost_by_all if lost_by_all else 0.0, np.maximum(lost, 0.0)
    if explained < _LEAST_EXPLAINED or not shares.sum():
        return Importance(note=f"No hyperparameter separates better from worse trials among these {len(trials)}.")
    named = zip(axes, shares / shares.sum(), strict=True)
    return Importance({name: float(share) for name, share in sorted(named, key=lambda each: -each[1])}, explained)


def _ranks(history: SearchHistory, metrics: list[float]) -> Any:
    """Ranks metrics from 0, the best, to 1."""
    sign = 1.0 if history.minimized else -1.0
    losses = [sign * metric if math.isfinite(metric) else math.inf for metric in metrics]
    return np.searchsorted(np.sort(losses), losses) / len(losses)


def _number(leaf: Leaf, value: Any) -> float:
    if isinstance(leaf, Categorical):
        return float([str(each) for each in leaf.vals].index(str(value)))
    return math.log(value) if isinstance(leaf, Log) else float(value)
