"""Computes metrics over ranks from the summed state of Keras' metrics: a mean of AUCs, for example, would be wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ....errors import TrialError
from ... import distributed as world
from ...trials.metrics import Goal, mean_over_ranks

_ONE_RANK = "only_first_replica"


def check_metrics(model: keras.Model) -> None:
    """Checks that the metrics of a built model can be combined over ranks; all ranks agree."""
    for metric in leaf_metrics(model):
        if not metric.variables:
            raise TrialError(
                f"metric {metric.name!r} ({type(metric).__name__}) keeps no state in variables, so it cannot be "
                "measured over several ranks; make its state with add_variable, or train on one rank"
            )
        for variable in metric.variables:
            if _aggregation(variable) == "none":
                raise TrialError(
                    f"metric {metric.name!r} ({type(metric).__name__}) keeps {variable.name!r} with aggregation 'none' "
                    "and cannot be measured over several ranks; make it with aggregation 'sum', or train on one rank"
                )


def check_goal(model: keras.Model, goal: Goal, *, validates: bool, counted: Sequence[str] = ()) -> None:
    """Checks that a built model has the metric that decides; a custom training step may return others."""
    steps = ("train_step", "test_step", "compute_metrics")
    if any(getattr(type(model), step) is not getattr(keras.Model, step) for step in steps):
        return
    names = [metric.name for metric in leaf_metrics(model)]
    asked = goal.metric.removeprefix("val_")
    # A metric of several values, or of a model with several outputs, has these in its names.
    if any(asked == name or asked.startswith(f"{name}_") or asked.endswith(f"_{name}") for name in names):
        return
    goal.value_in(dict.fromkeys([*names, *(f"val_{name}" for name in [*names, *counted] if validates)], 0.0))


def leaf_metrics(model: keras.Model) -> list[keras.metrics.Metric]:
    """Lists a model's metrics, including each metric passed to `compile`."""
    found: list[keras.metrics.Metric] = []
    for metric in model.metrics:
        found += getattr(metric, "metrics", [metric])
    return found


def metrics_over_ranks(model: keras.Model, logs: Mapping[str, Any], rows: float) -> dict[str, float]:
    """Returns the values of a model's metrics over the rows of all ranks; every rank calls it and gets the same.

    Other values that a custom `train_step` or `test_step` returns are averaged over ranks, weighted by rows.
    """
    values = plain(logs)
    if world.size() == 1:
        return values
    variables = model.metrics_variables
    shapes = [tuple(variable.shape) for variable in variables]
    built = all(getattr(metric, "built", True) for metric in model.metrics)
    names = set(plain(model.get_metrics_result())) if built else set()
    gathered = world.allgather_object((values, rows, shapes, names), name="lakelens.metrics")
    logged = {name for others, *_ in gathered for name in others}
    alike = all(other == shapes for _, _, other, _ in gathered) and all(names == logged for *_, names in gathered)
    if not alike:
        return mean_over_ranks((count, others) for others, count, *_ in gathered)
    with _summed(variables, len(gathered)):
        return plain(model.get_metrics_result())


def plain(logs: Mapping[str, Any]) -> dict[str, float]:
    """Returns values as numbers; one that is an array becomes `name_0`, `name_1`, ..."""
    found: dict[str, float] = {}
    for name, value in logs.items():
        array = np.asarray(value, np.float64)
        if array.ndim == 0:
            found[name] = float(array)
        else:
            found |= {f"{name}_{number}": float(each) for number, each in enumerate(array.ravel())}
    return found


@contextmanager
def _summed(variables: Sequence[keras.Variable], ranks: int) -> Iterator[None]:
    """Sets variables to the state over all ranks until the block ends."""
    mine = [np.asarray(variable) for variable in variables]
    kinds = [_aggregation(variable) for variable in variables]
    if mine:
        # Sums in float64 are exact for counts and do not depend on the order of the ranks for all but the last digits
        # of float32. A rank that does not count adds zero.
        parts = [
            np.zeros_like(value, np.float64) if kind == _ONE_RANK and world.rank() > 0 else value.astype(np.float64)
            for kind, value in zip(kinds, mine, strict=True)
        ]
        sums = world.grouped_allreduce([tf.constant(part) for part in parts], name="lakelens.sums", op=world.Sum)
        for variable, kind, total in zip(variables, kinds, sums, strict=True):
            variable.assign(tf.cast(total / ranks if kind == "mean" else total, variable.dtype))
    try:
        yield
    finally:
        for variable, value in zip(variables, mine, strict=True):
            variable.assign(value)


def _aggregation(variable: keras.Variable) -> str:
    return str(getattr(variable, "aggregation", "sum"))
