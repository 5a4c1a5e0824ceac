"""Importance of hyperparameters: permutation importance in a model of the metric. Needs scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...errors import MissingDependencyError
from ...results import counted
from .history import SearchHistory

FEWEST_TRIALS = 10
_FOLDS, _REPEATS, _TREES = 4, 5, 60
_LEAST_EXPLAINED = 0.05


@dataclass(frozen=True)
class Importance:
    """Importance of hyperparameters."""

    # By hyperparameter, most important first; they sum to 1. Empty if it cannot be estimated
    shares: dict[str, float] = field(default_factory=dict)
    # How much smaller the model's squared error is than with all hyperparameters permuted, on trials that it has not
    # seen: 1 is all of it, 0 none
    explained: float = 0.0
    note: str = ""  # Why it cannot be estimated, else empty


def importance_of(history: SearchHistory) -> Importance:
    """Fits a random forest to the metrics' ranks and permutes one hyperparameter after the other."""
    # A row is a trial at one rung. The rung's length is an input too, because trials that trained longer are better for
    # that reason alone. Everything is measured on trials held out of the fit. NaN ranks last.
    axes, curves = list(history.axes), history.curves
    trials = curves["trial"].nunique()
    if not axes or trials < FEWEST_TRIALS or history.best is None:
        return Importance(note=f"{counted(trials, 'trial')} validated; importance needs {FEWEST_TRIALS}.")
    try:
        from sklearn.ensemble import RandomForestRegressor
        from sklearn.inspection import permutation_importance
        from sklearn.metrics import mean_squared_error
        from sklearn.model_selection import GroupKFold
    except ImportError as error:
        raise MissingDependencyError(
            "importance of hyperparameters needs scikit-learn: pip install 'lakelens[search]'"
        ) from error
    last = curves["length"] == curves.groupby("trial")["length"].transform("max")
    rows = curves[last | curves["length"].isin(history.rungs)]
    inputs = np.column_stack([history.places.loc[rows["trial"]], np.log1p(rows["length"])])
    losses = rows["metric"].where(np.isfinite(rows["metric"]), np.nan) * (1 if history.minimized else -1)
    ranks = losses.rank(method="min", na_option="bottom", pct=True).to_numpy()
    random = np.random.default_rng(0)
    lost, lost_by_all, unexplained = np.zeros(len(axes)), 0.0, 0.0
    for fit, held_out in GroupKFold(_FOLDS).split(inputs, groups=rows["trial"]):
        forest = RandomForestRegressor(_TREES, min_samples_leaf=2, random_state=0).fit(inputs[fit], ranks[fit])
        given, expected, weight = inputs[held_out], ranks[held_out], len(held_out)
        asked = {"scoring": "neg_mean_squared_error", "n_repeats": _REPEATS, "random_state": 0}
        lost += weight * permutation_importance(forest, given, expected, **asked).importances_mean[:-1]
        unexplained += weight * mean_squared_error(expected, forest.predict(given))
        for _ in range(_REPEATS):
            shuffled = np.column_stack([random.permutation(given[:, :-1]), given[:, -1]])
            lost_by_all += weight * mean_squared_error(expected, forest.predict(shuffled)) / _REPEATS
    explained, shares = 1 - unexplained / lost_by_all if lost_by_all else 0.0, np.maximum(lost, 0.0)
    if explained < _LEAST_EXPLAINED or not shares.sum():
        return Importance(note=f"No hyperparameter separates better from worse trials among these {trials}.")
    named = zip(axes, shares / shares.sum(), strict=True)
    return Importance({name: float(share) for name, share in sorted(named, key=lambda each: -each[1])}, explained)
