"""Between the Arrow batches of a Spark task and the predictor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ...training.tasks.task import Task
from .decoding import StoredRows
from .predictor import Predictions, Predictor

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


def prediction_ddl(task: Task | type[Task]) -> str:
    """Gives the columns of a prediction, as in SQL: those of the task, then `error`."""
    return ", ".join(f"{name} {kind}" for name, kind in {**task.prediction_columns, "error": "STRING"}.items())


def stored_rows(columns: Mapping[str, pa.Array]) -> StoredRows:
    """Takes the columns `image`, `format`, `height` and `width` of an Arrow batch; all but `image` may be absent."""
    formats, heights, widths = (
        columns[name].to_pylist() if name in columns else None for name in ("format", "height", "width")
    )
    return StoredRows(columns["image"].to_pylist(), formats, heights, widths)


def predict_arrow(predictor: Predictor, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Replaces the columns of the stored image by those of the prediction; the other columns stay.

    Memory: one Arrow batch, a second copy of its stored images, two decoded pieces of it, and its results.
    """
    import pyarrow as pa

    images = ("image", "format", "height", "width")
    for batch in batches:
        columns = {name: batch.column(i) for i, name in enumerate(batch.schema.names)}
        kept = {name: column for name, column in columns.items() if name not in images}
        start = 0
        for piece in predictor.stream([stored_rows(columns)]):
            passed = {name: column.slice(start, len(piece)) for name, column in kept.items()}
            yield pa.RecordBatch.from_pydict(passed | prediction_arrays(predictor, piece))
            start += len(piece)


def prediction_arrays(predictor: Predictor, predictions: Predictions) -> dict[str, pa.Array]:
    """Writes predictions as Arrow columns; a row with an error has null in all of them but `error`."""
    import pyarrow as pa

    height, width, _ = predictor.input_shape
    arrays = predictor.task.prediction_arrays(
        predictions.answers, predictions.valid, predictions.sizes, (height, width)
    )
    return {**arrays, "error": pa.array(predictions.errors, pa.string())}


def predict_pandas(predictor: Predictor, batches: Iterable[Any]) -> Iterator[pd.DataFrame]:
    """Predicts for the batches that a pandas UDF gets: a Series of images, or Series of image, format, height, width.

    Yields:
        One row per image, in order.
    """
    import pandas as pd

    for piece in predictor.stream(_rows_of_series(batch) for batch in batches):
        arrays = prediction_arrays(predictor, piece)
        yield pd.DataFrame({name: pd.Series(array.to_pylist(), dtype=object) for name, array in arrays.items()})


def _rows_of_series(batch: Any) -> StoredRows:
    columns = batch if isinstance(batch, tuple) else (batch,)
    images, formats, heights, widths = (
        [None if _is_null(value) else value for value in column] if column is not None else None
        for column in (*columns, *([None] * (4 - len(columns))))
    )
    return StoredRows(
        images or [],
        formats,
        None if heights is None else [None if value is None else int(value) for value in heights],
        None if widths is None else [None if value is None else int(value) for value in widths],
    )


def _is_null(value: Any) -> bool:
    """Pandas writes a null number as NaN."""
    return value is None or (isinstance(value, float) and value != value)
