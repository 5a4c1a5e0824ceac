"""Which rows of a version have to be scored, which can be carried over, and which are there already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .predictions import PASSED, PREDICTED, PredictionsState, PredictionsTable
from .source import ScoredTable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Keys are joined to the images by sending the keys to the images; more than these are a shuffle's business.
_MOST_SENT_KEYS = 5_000_000

_STATUS = "_status"
_EARLIER = "_earlier"
_TODO, _CARRIED, _DONE = "todo", "carried", "done"
# What a carried row keeps of the row that it is copied from; the rest says which run has written it.
_PREDICTED = (*PREDICTED, "model_uri", "scored_at")


@dataclass(frozen=True)
class Work:
    """What a scoring run has to do.

    Attributes:
        todo: Rows to run the model on, with their stored images.
        carried: Finished rows, copied from predictions of the same images in other versions; None for none.
        todo_rows: Rows of `todo`.
        carried_rows: Rows of `carried`.
        total_rows: Rows of the version and split.
    """

    todo: DataFrame
    carried: DataFrame | None
    todo_rows: int
    carried_rows: int
    total_rows: int


@contextmanager
def split_work(source: ScoredTable, results: PredictionsTable, state: PredictionsState, digest: str) -> Iterator[Work]:
    """Compares the rows of a version with the predictions of one checkpoint in state `state`.

    Images are read in no case; where this checkpoint has never scored this table, predictions are not read either. That
    no append has left its number does not tell: a copy of a predictions table has the rows without the numbers.

    Yields:
        The work; its DataFrames are good inside the `with` only.
    """
    predictions = _predictions(source, results, state, digest)
    if predictions is None or (state.transaction is None and predictions.isEmpty()):
        total = _count(source)
        yield Work(source.images(), None, total, 0, total)
        return
    marked = _mark(source.keys(), predictions, source.version).persist()
    try:
        counts = {row[_STATUS]: row["count"] for row in marked.groupBy(_STATUS).count().collect()}
        todo, carried = counts.get(_TODO, 0), counts.get(_CARRIED, 0)
        yield Work(
            _images_of(source, marked, todo, sum(counts.values())),
            _carried_rows(marked) if carried else None,
            todo,
            carried,
            sum(counts.values()),
        )
    finally:
        marked.unpersist()


def _predictions(
    source: ScoredTable, results: PredictionsTable, state: PredictionsState, digest: str
) -> DataFrame | None:
    """Selects what one checkpoint has predicted for a table, by columns whose statistics spare most files."""
    if state.version is None:
        return None
    from pyspark.sql import functions

    return results.read(state.version).where(
        (functions.col("checkpoint_digest") == digest) & (functions.col("table") == source.location)
    )


def _count(source: ScoredTable) -> int:
    files = source.files
    if files is not None and not bool((files.rows < 0).any()):
        return int(files.rows.sum())
    return int(source.keys().count())


def _mark(keys: DataFrame, predictions: DataFrame, version: int) -> DataFrame:
    """Gives each row its status, and a row that can be carried the earlier prediction.

    Null paths and null hashes equal each other, so that no row is scored again for having none.
    """
    from pyspark.sql import functions as f

    here = (
        predictions.where(f.col("version") == version)
        .select("path", "content_hash")
        .distinct()
        .withColumn("_here", f.lit(True))
    )
    elsewhere = (
        predictions.where((f.col("version") != version) & f.col("error").isNull() & f.col("content_hash").isNotNull())
        .groupBy("path", "content_hash")
        .agg(f.max_by(f.struct(*_PREDICTED), f.col("scored_at")).alias(_EARLIER))
    )
    status = f.when(f.col("_here").isNotNull(), _DONE).when(f.col(_EARLIER).isNotNull(), _CARRIED).otherwise(_TODO)
    rows = keys.alias("keys")
    joined = rows.join(here.alias("here"), _same_row("keys", "here"), "left").join(
        elsewhere.alias("elsewhere"), _same_row("keys", "elsewhere"), "left"
    )
    return joined.select("keys.*", status.alias(_STATUS), _EARLIER)


def _same_row(left: str, right: str) -> Column:
    from pyspark.sql import functions as f

    same_path = f.col(f"{left}.path").eqNullSafe(f.col(f"{right}.path"))
    return same_path & f.col(f"{left}.content_hash").eqNullSafe(f.col(f"{right}.content_hash"))


def _images_of(source: ScoredTable, marked: DataFrame, todo: int, total: int) -> DataFrame:
    """Reads the images of the rows to do, by sending whichever keys are fewer to where the images are read."""
    from pyspark.sql import functions as f

    images = source.images()
    if todo == total:
        return images
    is_todo = f.col(_STATUS) == _TODO
    chosen, how = (
        (marked.where(is_todo), "left_semi") if todo <= total - todo else (marked.where(~is_todo), "left_anti")
    )
    keys = chosen.select("path", "content_hash").distinct()
    if min(todo, total - todo) <= _MOST_SENT_KEYS:
        keys = f.broadcast(keys)
    return images.alias("images").join(keys.alias("chosen"), _same_row("images", "chosen"), how)


def _carried_rows(marked: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    carried = marked.where(f.col(_STATUS) == _CARRIED)
    return carried.select(*PASSED, *(f.col(f"{_EARLIER}.{name}").alias(name) for name in _PREDICTED))
