"""Whole dictionaries of columns, for those who decode for themselves or feed no images."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...errors import BadRowError, InvalidArgumentError
from ...etl.model.schema import CONTENT_HASH, INGEST_COLUMNS, LABEL, LABEL_NAME, SOURCE, SPLIT
from ...log.delta_types import arrow_type, type_name
from ...options import near_miss
from .plan.feed_plan import FeedPlan, Shard
from .rank_batches import BatchReader, RowBatch

# Delta type -> NumPy type.
NUMPY_TYPES = {
    "byte": "int8",
    "short": "int16",
    "integer": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "boolean": "bool",
    "date": "datetime64[D]",
    "timestamp": "datetime64[us]",
    "timestamp_ntz": "datetime64[us]",
}
_TEXTS = ("string", "binary")
# What stands for null in image tables and their quarantines: the class of an image without one, a missing text.
_NO_CLASS = {LABEL: -1, LABEL_NAME: "", "error": ""}
# What only predictions tables have, whatever the task, and what stands for null there.
_PREDICTIONS = frozenset({"error", "checkpoint_digest", "model_uri", "scored_at"})
_NO_PREDICTION = {**_NO_CLASS, SPLIT: "", CONTENT_HASH: "", "prediction": -1, "predicted_name": ""}

Columns = dict[str, npt.NDArray[Any]]


def chosen_columns(plan: FeedPlan, columns: Sequence[str] | None, fits: Callable[[str], bool]) -> list[str]:
    """Lists the columns to read."""
    if isinstance(columns, str):
        raise InvalidArgumentError(f"columns={columns!r}: give a list of names, such as columns=[{columns!r}]")
    if columns is None:
        return _fitting_columns(plan, fits)
    if not columns:
        raise InvalidArgumentError(f"columns=[]: name at least one column of {plan.location}: {', '.join(plan.schema)}")
    for name in columns:
        if name not in plan.schema:
            raise InvalidArgumentError(
                f"columns: {plan.location} has no column {name!r}{near_miss(name, plan.schema)}; it has "
                f"{', '.join(plan.schema)}"
            )
    return list(columns)


def _fitting_columns(plan: FeedPlan, fits: Callable[[str], bool]) -> list[str]:
    left_out = INGEST_COLUMNS | {SOURCE} if is_image_table(plan.schema) else frozenset[str]()
    wanted = [name for name in plan.schema if name not in left_out]
    fitting = [name for name in wanted if fits(name)]
    others = ", ".join(name for name in wanted if name not in fitting)
    if not fitting:
        raise InvalidArgumentError(f"{plan.location}: no column has a tensor form there: {others}")
    if others:
        warnings.warn(
            f"{plan.location}: columns without a tensor form are left out: {others}; name the columns to read with "
            "columns=[...], or decode images with lakelens.decode_images(height, width)",
            stacklevel=2,
        )
    return fitting


def numpy_columns(
    shard: Shard, wanted: Sequence[str], fill: Mapping[str, Any]
) -> Iterator[tuple[Columns, npt.NDArray[np.float32]]]:
    """Yields (columns, weights) of each batch: numbers and times as NumPy types, everything else as objects."""
    with BatchReader(shard, wanted) as reader:
        for batch in reader:
            yield {name: column_array(shard.plan, batch, name, fill) for name in wanted}, batch.weights


def is_image_table(schema: Mapping[str, str]) -> bool:
    """Returns whether a table has all columns that lakelens' ingest needs."""
    return INGEST_COLUMNS.issubset(schema)


def lacks_values(schema: Mapping[str, str], name: str) -> bool:
    """Returns whether nothing stands for a column's nulls: the lists of a prediction, null if scoring failed."""
    return not has_tensors(schema[name]) and _PREDICTIONS.issubset(schema)


def has_tensors(declared: str) -> bool:
    """Returns whether a column of a Delta type has a tensor form."""
    return declared in _TEXTS or declared in NUMPY_TYPES or declared.startswith("decimal")


def filling_of(plan: FeedPlan, fill: Mapping[str, Any] | None) -> dict[str, Any]:
    """Checks what stands for null, by column, and adds what stands for it in the tables that lakelens writes."""
    found: dict[str, Any] = dict(_NO_CLASS) if is_image_table(plan.schema) else {}
    if _PREDICTIONS.issubset(plan.schema):
        found = dict(_NO_PREDICTION)
    for name, value in (fill or {}).items():
        if name not in plan.schema:
            raise InvalidArgumentError(f"fill: {plan.location} has no column {name!r}; it has {', '.join(plan.schema)}")
        declared = plan.schema[name]
        try:
            found[name] = _fitting(value, declared)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise InvalidArgumentError(
                f"fill: {name}={value!r} does not fit the column's type {type_name(declared)}: {error}; give a value "
                "of that type"
            ) from error
    return found


def _fitting(value: Any, declared: str) -> Any:
    """Gives a value as a column of a Delta type holds it."""
    if value is None:
        raise TypeError("it is null")
    if isinstance(value, np.generic) and value.dtype.kind != "M":
        value = value.item()
    if NUMPY_TYPES.get(declared, "").startswith("datetime64"):
        if isinstance(value, datetime) and value.tzinfo is not None:
            value = value.astimezone(timezone.utc).replace(tzinfo=None)
        if isinstance(value, (str, bool)):
            raise TypeError(f"a time is a date, a datetime or a number, not {type(value).__name__}")
        return np.array([value]).astype(NUMPY_TYPES[declared])[0]
    if declared.startswith("decimal") and isinstance(value, str):
        return value  # as decimals come out of a dataset
    if isinstance(value, bool) != (declared == "boolean"):
        raise TypeError(f"it is {type(value).__name__}")
    if declared in ("string", "binary") and not isinstance(value, str if declared == "string" else bytes):
        raise TypeError(f"it is {type(value).__name__}")
    held = pa.array([value], arrow_type(declared))
    return held.to_pylist()[0] if declared.startswith("{") else value


def column_array(plan: FeedPlan, batch: RowBatch, name: str, fill: Mapping[str, Any]) -> npt.NDArray[Any]:
    """Gives one column of a batch; a batch without a row of this rank is zeros."""
    declared = plan.schema[name]
    rows = len(batch.weights)
    values: list[Any]
    if declared == "binary":
        values = [None if view is None else view.tobytes() for view in batch.bytes_of(name)]
    else:
        values = batch.values_of(name)
    if None in values and (has_tensors(declared) or name in fill):
        values = [_filled(plan, batch, i, name, fill) if value is None else value for i, value in enumerate(values)]
    if declared in NUMPY_TYPES:
        kind = np.dtype(NUMPY_TYPES[declared])
        if not values:
            return np.zeros(rows, dtype=kind)
        if declared == "timestamp":
            values = [value.replace(tzinfo=None) if isinstance(value, datetime) else value for value in values]
        return np.array(values, dtype=kind)
    array = np.empty(rows, dtype=object)
    array[:] = values or [b"" if declared == "binary" else ""] * rows
    return array


def _filled(plan: FeedPlan, batch: RowBatch, row: int, name: str, fill: Mapping[str, Any]) -> Any:
    """Finds what stands for a null: what the user gave, NaN among floats."""
    if name in fill:
        return fill[name]
    if plan.schema[name] in ("float", "double"):
        return float("nan")
    file, stored_row = batch.origins()[row].tolist()
    raise BadRowError(
        f"{plan.describe_row(file, stored_row)} is null in column {name!r}; give what stands for it: "
        f"fill={{{name!r}: ...}}"
    )
