"""Which rows of a version have to be scored, which can be carried over, and which are there already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...errors import InvalidArgumentError
from ..model.failures import TRANSIENT
from .log_counts import mark_of
from .parts import Piece
from .predictions import PASSED, PREDICTED, PredictionsState, PredictionsTable
from .source import FILE, ScoredTable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Keys are joined to the images by sending the keys to the images; more than these are a shuffle's business.
_MOST_SENT_KEYS = 5_000_000

_STATUS = "_status"
_EARLIER = "_earlier"
_TODO, _CARRIED, _DONE, _RETRIED = "todo", "carried", "done", "retried"
# What a carried row keeps of the row that it is copied from; the rest says which run has written it.
_PREDICTED = (*PREDICTED, "model_uri", "scored_at")


@dataclass(frozen=True)
class FileRows:
    """Rows of one data file.

    Attributes:
        name: What Spark calls the file.
        todo: How many of its rows the model is to be run on.
        others: How many it is not.
    """

    name: str
    todo: int = 0
    others: int = 0


@dataclass(frozen=True)
class Work:
    """What a scoring run has to do.

    Attributes:
        source: What is scored.
        todo_rows: Rows to run the model on.
        carried_rows: Finished rows that are copied from predictions of the same images in other versions.
        retried_rows: Rows with an error that may have passed.
        total_rows: Rows of the version and split.
        files: The data files by location; None where they are not known.
        marked: Each row's key with what is to be done with it; None where all are to be scored.
    """

    source: ScoredTable
    todo_rows: int
    carried_rows: int
    retried_rows: int
    total_rows: int
    files: Mapping[str, FileRows] | None
    marked: DataFrame | None

    def images(self, pieces: Sequence[Piece] | None) -> DataFrame:
        """Reads the rows that the model is to be run on, with their stored images.

        Args:
            pieces: Only those of these pieces.
        """
        from pyspark.sql import functions as f

        images = self.source.images(pieces)
        if self.marked is None or self.todo_rows == self.total_rows:
            return images
        keys = self.marked.where(f.col(_STATUS) == _TODO)
        if pieces is not None and self.files is not None:
            files = [self.files[place] for place in {piece.file for piece in pieces}]
            if not any(file.others for file in files):
                return images
            keys = keys.where(f.col(FILE).isin([file.name for file in files]))
        keys = keys.select("path", "content_hash").distinct()
        if self.todo_rows <= _MOST_SENT_KEYS:
            keys = f.broadcast(keys)
        return images.alias("images").join(keys.alias("chosen"), same_row("images", "chosen"), "left_semi")

    def carried(self) -> DataFrame:
        """Gives the rows to be copied, with what was predicted for them and when."""
        from pyspark.sql import functions as f

        if self.marked is None:
            raise ValueError("nothing was scored before")
        carried = self.marked.where(f.col(_STATUS) == _CARRIED)
        return carried.select(*PASSED, *(f.col(f"{_EARLIER}.{name}").alias(name) for name in _PREDICTED))


@contextmanager
def split_work(
    source: ScoredTable, results: PredictionsTable, state: PredictionsState, digest: str, *, retry: bool
) -> Iterator[Work]:
    """Compares the rows of a version with the predictions of one checkpoint in state `state`.

    Images are read in no case; where this checkpoint has never scored this table, predictions are not read either. That
    no append has left its number does not tell: a copy of a predictions table has the rows without the numbers.

    Args:
        source: What is scored.
        results: The predictions.
        state: Up to where they are looked at.
        digest: Digest of the checkpoint.
        retry: Whether rows with an error that may have passed are work; else they are done.

    Yields:
        The work; its DataFrames are good inside the `with` only.

    Raises:
        InvalidArgumentError: If the predictions of this version were scored by another key.
    """
    predictions = _predictions(source, results, state, digest)
    if predictions is None or (state.transaction is None and predictions.isEmpty()):
        yield _all_rows(source)
        return
    marked = _mark(source.keys(), predictions, source.version, retry).persist()
    try:
        work = _marked_rows(source, marked)
        if work.todo_rows + work.carried_rows == work.total_rows:
            _require_same_key(source, predictions, results.location, digest)
        yield work
    finally:
        marked.unpersist()


def done_rows(source: ScoredTable, results: PredictionsTable, state: PredictionsState, digest: str) -> DataFrame:
    """Gives the keys of the rows that one checkpoint has scored in this version, up to `state`."""
    from pyspark.sql import functions as f

    predictions = _predictions(source, results, state, digest)
    if predictions is None:
        raise ValueError("there are no predictions")
    return predictions.where(f.col("version") == source.version).select("path", "content_hash")


def retried(source: ScoredTable, digest: str) -> Column:
    """The condition of the rows of a predictions table that are to be tried again."""
    from pyspark.sql import functions as f

    ours = of_scoring(source, digest) & (f.col("version") == source.version)
    ours = ours if source.split is None else ours & (f.col("split") == source.split)
    return ours & f.col("error").rlike(TRANSIENT)


def of_scoring(source: ScoredTable, digest: str) -> Column:
    """The condition of the rows of a predictions table that one checkpoint has predicted for a table.

    Of rows without a content hash only those of this version: nothing else tells them from the rows of a table that was
    in the same place before.
    """
    from pyspark.sql import functions as f

    mark = mark_of(digest, source.location, source.table_id, source.version)
    ours = (f.col("checkpoint_digest") == digest) & (f.col("table") == source.location)
    return ours & (f.col("content_hash").isNotNull() | f.col("batch_id").startswith(mark))


def _predictions(
    source: ScoredTable, results: PredictionsTable, state: PredictionsState, digest: str
) -> DataFrame | None:
    """Selects what one checkpoint has predicted for a table, by columns whose statistics spare most files."""
    if state.version is None:
        return None
    return results.read(state.version).where(of_scoring(source, digest))


def _require_same_key(source: ScoredTable, predictions: DataFrame, location: str, digest: str) -> None:
    """Checks that rows which have none of the predictions' keys are not those of an earlier call with another key."""
    from pyspark.sql import functions as f

    ours = f.col("batch_id").startswith(mark_of(digest, source.location, source.table_id, source.version))
    ours = ours if source.split is None else ours & (f.col("split") == source.split)
    if not predictions.where(ours).isEmpty():
        raise InvalidArgumentError(
            f"{location} holds rows of {source.name} by this model, and none has the value of key="
            f"{source.columns.key!r}: they were scored with another key, or path column. Give that (key=..., "
            "--key), or another predictions table"
        )


def _all_rows(source: ScoredTable) -> Work:
    rows = source.rows
    if rows is not None:
        files = {place: FileRows("", todo) for place, todo in source.rows_by_file.items()}
        return Work(source, rows, 0, 0, rows, files, None)
    keys = source.keys()
    if source.files is None:
        total = keys.count()
        return Work(source, total, 0, 0, total, None, None)
    from pyspark.sql import functions as f

    return _of_counts(source, keys.groupBy(FILE, f.lit(_TODO).alias(_STATUS)).count().collect(), None)


def _marked_rows(source: ScoredTable, marked: DataFrame) -> Work:
    columns = [_STATUS] if source.files is None else [_STATUS, FILE]
    return _of_counts(source, marked.groupBy(*columns).count().collect(), marked)


def _of_counts(source: ScoredTable, counted: Sequence[Any], marked: DataFrame | None) -> Work:
    by_status: Counter[str] = Counter()
    files: dict[str, FileRows] | None = None if source.files is None else {}
    for row in counted:
        by_status[row[_STATUS]] += row["count"]
        place = None if files is None else source.place(row[FILE])
        if files is None or place is None:
            files = None  # Spark's names of the files are not those of the log
            continue
        file = files.get(place, FileRows(row[FILE]))
        change = {"todo": file.todo + row["count"]} if row[_STATUS] == _TODO else {"others": file.others + row["count"]}
        files[place] = replace(file, **change)
    return Work(
        source, by_status[_TODO], by_status[_CARRIED], by_status[_RETRIED], sum(by_status.values()), files, marked
    )


def _mark(keys: DataFrame, predictions: DataFrame, version: int, retry: bool) -> DataFrame:
    """Gives each row its status, and a row that can be carried the earlier prediction.

    Null paths and null hashes equal each other, so that no row is scored again for having none.
    """
    from pyspark.sql import functions as f

    is_retried = f.coalesce(f.col("error").rlike(TRANSIENT), f.lit(False)) if retry else f.lit(False)
    here = (
        predictions.where(f.col("version") == version)
        .groupBy("path", "content_hash")
        .agg(f.min(f.when(is_retried, _RETRIED).otherwise(_DONE)).alias("_here"))
    )
    elsewhere = (
        predictions.where((f.col("version") != version) & f.col("error").isNull() & f.col("content_hash").isNotNull())
        .groupBy("path", "content_hash")
        .agg(f.max_by(f.struct(*_PREDICTED), f.col("scored_at")).alias(_EARLIER))
    )
    status = f.coalesce(f.col("_here"), f.when(f.col(_EARLIER).isNotNull(), _CARRIED).otherwise(_TODO))
    rows = keys.alias("keys")
    joined = rows.join(here.alias("here"), same_row("keys", "here"), "left").join(
        elsewhere.alias("elsewhere"), same_row("keys", "elsewhere"), "left"
    )
    return joined.select("keys.*", status.alias(_STATUS), _EARLIER)


def same_row(left: str, right: str) -> Column:
    """The condition that two aliased DataFrames mean the same row; null equals null."""
    from pyspark.sql import functions as f

    same_path = f.col(f"{left}.path").eqNullSafe(f.col(f"{right}.path"))
    return same_path & f.col(f"{left}.content_hash").eqNullSafe(f.col(f"{right}.content_hash"))
