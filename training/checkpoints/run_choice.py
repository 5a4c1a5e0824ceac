"""Chooses the best run of an experiment, among runs that one metric decided. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...errors import ModelNotFoundError
from ...tracking.names import metric_of
from ...tracking.runs import METRIC_TAG

if TYPE_CHECKING:
    from mlflow.entities import Run

_METRIC_KEY = "?metric="
# The metric that chose the best epoch, for runs that do not record it.
_DEFAULT_GOAL = "val_loss:min"


def named_metric(experiment: str) -> tuple[str, str | None]:
    """Splits `NAME?metric=METRIC`; METRIC is as `val_loss` or `val_loss:min`."""
    name, key, metric = experiment.rpartition(_METRIC_KEY)
    return (name.strip(), metric.strip()) if key else (experiment, None)


def best_run(uri: str, runs: Iterable[Run], metric: str | None = None) -> Run:
    """Chooses the run with the best value of the metric that chose its checkpoint; of equals the oldest.

    A run has metric and direction in its tag `lakelens.metric`, as `val_loss:min`; its best value is the MLflow metric
    `best_<name>`. Runs without that value, or with NaN, are skipped.
    """
    by_goal: dict[str, list[tuple[float, int, str, Run]]] = {}
    for run in runs:
        goal = run.data.tags.get(METRIC_TAG, _DEFAULT_GOAL)
        name, _, mode = goal.rpartition(":")
        value = metric_of(run, f"best_{name}")
        if value is not None and not math.isnan(value):
            loss = -float(value) if mode == "max" else float(value)
            by_goal.setdefault(goal, []).append((loss, run.info.start_time, run.info.run_id, run))
    known = ", ".join(f"{goal} ({len(found)})" for goal, found in sorted(by_goal.items()))
    if not known:
        raise ModelNotFoundError(
            f"{uri!r}: the experiment has no finished run with a metric that chose a checkpoint; train one, or name a "
            "run: runs:/<run id>"
        )
    chosen = [goal for goal in sorted(by_goal) if metric in (None, goal, goal.rpartition(":")[0])]
    if not chosen:
        raise ModelNotFoundError(f"{uri!r}: no finished run was decided by metric {metric!r}; they were by {known}")
    if len(chosen) > 1:
        name = uri.partition(_METRIC_KEY)[0]
        example = chosen[0] if metric else chosen[0].rpartition(":")[0]
        raise ModelNotFoundError(
            f"{uri!r}: its finished runs were decided by different metrics, whose values cannot be compared: {known}. "
            f"Name one, as {name}{_METRIC_KEY}{example}"
        )
    return min(by_goal[chosen[0]], key=lambda entry: entry[:3])[3]
