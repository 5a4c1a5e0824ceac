"""Between the Arrow batches of a Spark task and the predictor."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ...training.tasks.task import Task
from .decoding import StoredRows
from .predictor import Predictions, Predictor

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

# The columns that only the predictor needs.
_STORED = ("image", "format", "height", "width", "source")


def prediction_ddl(task: Task | type[Task]) -> str:
    """Gives the columns of a prediction, as in SQL: those of the task, then `error`."""
    return ", ".join(f"{name} {kind}" for name, kind in {**task.prediction_columns, "error": "STRING"}.items())


def stored_rows(columns: Mapping[str, pa.Array]) -> StoredRows:
    """Takes the columns of `_STORED` of an Arrow batch; all but `image` may be absent."""
    formats, heights, widths, sources = (columns[name].to_pylist() if name in columns else None for name in _STORED[1:])
    return StoredRows(columns["image"].to_pylist(), formats, heights, widths, sources)


def predict_arrow(predictor: Predictor, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Replaces the columns of the stored image by those of the prediction; the other columns stay.

    Memory: two Arrow batches with a second copy of their stored images, two decoded pieces, and their results.
    """
    import pyarrow as pa

    taken: deque[pa.RecordBatch] = deque()

    def stored() -> Iterator[StoredRows]:
        for batch in batches:
            if batch.num_rows:
                taken.append(batch)
                yield stored_rows({name: batch.column(i) for i, name in enumerate(batch.schema.names)})

    start = 0
    # The predictor takes the next batch while it still works on the last rows of the one before.
    for piece in predictor.stream(stored()):
        batch = taken[0]
        passed = {
            name: batch.column(i).slice(start, len(piece))
            for i, name in enumerate(batch.schema.names)
            if name not in _STORED
        }
        yield pa.RecordBatch.from_pydict(passed | prediction_arrays(predictor, piece))
        start += len(piece)
        if start == batch.num_rows:
            taken.popleft()
            start = 0


def prediction_arrays(predictor: Predictor, predictions: Predictions) -> dict[str, pa.Array]:
    """Writes predictions as Arrow columns; a row with an error has null in all of them but `error`."""
    import pyarrow as pa

    height, width, _ = predictor.input_shape
    arrays = predictor.task.prediction_arrays(
        predictions.answers, predictions.valid, predictions.frames.tolist(), (height, width)
    )
    return {**arrays, "error": pa.array(predictions.errors, pa.string())}


def predict_pandas(predictor: Predictor, batches: Iterable[Any]) -> Iterator[pd.DataFrame]:
    """Predicts for the batches that a pandas UDF gets: a Series of images, or also format, height, width and source."""
    import pandas as pd

    for piece in predictor.stream(_rows_of_series(batch) for batch in batches):
        arrays = prediction_arrays(predictor, piece)
        yield pd.DataFrame({name: _series(array) for name, array in arrays.items()})


def _series(array: pa.Array) -> pd.Series[Any]:
    """Makes a Series of Python objects; a list of numbers becomes an array, which Spark converts faster than a list."""
    import pandas as pd
    import pyarrow as pa

    is_numbers = pa.types.is_list(array.type) and pa.types.is_floating(array.type.value_type)
    values = array.to_pandas() if is_numbers else array.to_pylist()
    return pd.Series(values, dtype=object)


def _rows_of_series(batch: Any) -> StoredRows:
    columns = batch if isinstance(batch, tuple) else (batch,)
    images = [_whole(value) for value in columns[0]]
    formats, heights, widths = (
        [_whole(value) for value in columns[place]] if len(columns) > place else None for place in (1, 2, 3)
    )
    sources = None
    if len(columns) == len(_STORED):  # Spark gives a struct as a DataFrame, in which null has null fields
        records = columns[-1].to_dict("records")
        sources = [{name: _whole(value) for name, value in record.items()} for record in records]
    return StoredRows(images, formats, heights, widths, sources)


def _whole(value: Any) -> Any:
    """Pandas writes a null as NaN, and then the column's whole numbers as floats."""
    if not isinstance(value, float):
        return value
    return None if value != value else int(value)
