"""Whole dictionaries of columns, for those who decode for themselves or feed no images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...errors import BadRowError, InvalidArgumentError
from .rank_batches import RowBatch
from .tf_pipeline import Pass, dataset_of

if TYPE_CHECKING:
    import tensorflow as tf

    from .feed import DeltaFeed

# Delta type -> NumPy type. Times come as int64, since TensorFlow has no type for them.
_NUMBERS = {
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

Columns = dict[str, npt.NDArray[Any]]


def columns_of(feed: DeltaFeed, columns: Sequence[str] | None) -> list[str]:
    """Checks the columns that were asked for; None is all.

    Raises:
        InvalidArgumentError: If the table lacks one.
    """
    wanted = list(feed.plan.schema) if columns is None else list(columns)
    unknown = [name for name in wanted if name not in feed.plan.schema]
    if unknown or not wanted:
        missing = f"column {unknown[0]!r} is not in" if unknown else "no column is asked for of"
        raise InvalidArgumentError(f"columns: {missing} {feed.location}; it has {', '.join(feed.plan.schema)}")
    return wanted


def numpy_columns(
    feed: DeltaFeed, passed: Pass, wanted: Sequence[str], fill: Mapping[str, Any]
) -> Iterator[tuple[Columns, npt.NDArray[np.float32]]]:
    """Yields (columns, weights) of each batch: numbers and times as NumPy types, everything else as objects."""
    with passed.open(feed, wanted) as reader:
        for batch in reader:
            yield {name: column_array(feed, batch, name, fill) for name in wanted}, batch.weights


def column_dataset(feed: DeltaFeed, passed: Pass, wanted: Sequence[str], fill: Mapping[str, Any]) -> tf.data.Dataset:
    """Builds the pipeline behind `DeltaFeed.as_column_dataset`."""
    import tensorflow as tf

    kinds = {name: _tensor_type(feed, name) for name in wanted}
    signature = (
        {name: tf.TensorSpec((None,), kind) for name, kind in kinds.items()},
        tf.TensorSpec((None,), "float32"),
    )

    def batches(rows: Pass) -> Iterator[tuple[Columns, npt.NDArray[np.float32]]]:
        for arrays, weights in numpy_columns(feed, rows, wanted, fill):
            yield {name: _as_tensor_input(array) for name, array in arrays.items()}, weights

    return dataset_of(passed, signature, batches)


def _tensor_type(feed: DeltaFeed, name: str) -> str:
    declared = feed.plan.schema[name]
    if declared in _TEXTS or declared.startswith("decimal"):
        return "string"
    if declared not in _NUMBERS:
        raise InvalidArgumentError(
            f"column {name!r} of {feed.location} is {declared}, which has no tensor form; leave it out of columns, or "
            "take it from as_column_numpy"
        )
    return "int64" if _NUMBERS[declared].startswith("datetime64") else _NUMBERS[declared]


def _as_tensor_input(array: npt.NDArray[Any]) -> Any:
    if array.dtype.kind == "M":
        return array.astype(np.int64)
    if array.dtype.kind == "O":
        return [value if isinstance(value, bytes) else str(value).encode() for value in array]
    return array


def column_array(feed: DeltaFeed, batch: RowBatch, name: str, fill: Mapping[str, Any]) -> npt.NDArray[Any]:
    """Gives one column of a batch; a batch without a row of this rank is zeros."""
    declared = feed.plan.schema[name]
    rows = len(batch.weights)
    values: list[Any]
    if declared == "binary":
        values = [None if view is None else view.tobytes() for view in batch.bytes_of(name)]
    else:
        values = batch.values_of(name)
    if None in values:
        values = [_filled(feed, batch, i, name, fill) if value is None else value for i, value in enumerate(values)]
    if declared in _NUMBERS:
        kind = np.dtype(_NUMBERS[declared])
        if not values:
            return np.zeros(rows, dtype=kind)
        if declared == "timestamp":
            values = [value.replace(tzinfo=None) if isinstance(value, datetime) else value for value in values]
        try:
            return np.array(values, dtype=kind)
        except (TypeError, ValueError, OverflowError) as error:
            if name not in fill:
                raise
            raise InvalidArgumentError(
                f"fill: {name}={fill[name]!r} does not fit the column's type {declared}: {error}; give a value of that "
                "type"
            ) from error
    array = np.empty(rows, dtype=object)
    array[:] = values or [b"" if declared == "binary" else ""] * rows
    return array


def _filled(feed: DeltaFeed, batch: RowBatch, row: int, name: str, fill: Mapping[str, Any]) -> Any:
    """Finds what stands for a null: what the user said, NaN among floats."""
    if name in fill:
        value = fill[name]
        if isinstance(value, datetime) and value.tzinfo is not None:
            return value.astimezone(timezone.utc).replace(tzinfo=None)
        return value
    if feed.plan.schema[name] in ("float", "double"):
        return float("nan")
    file, stored_row = batch.origins()[row].tolist()
    raise BadRowError(
        f"{feed.describe_row(file, stored_row)} is null in column {name!r}; say what stands for it: "
        f"fill={{{name!r}: ...}}"
    )
