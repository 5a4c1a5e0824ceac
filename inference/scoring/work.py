"""The rows of a version that remain to be scored, found by one join of their keys with the predictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import InvalidArgumentError
from ..model.failures import TRANSIENT
from .predictions import PASSED, PredictionsState, PredictionsTable, mark_of
from .source import ALL_FILES, FILE, ScoredTable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_STATUS = "_status"
_EARLIER = "_earlier"
_TODO, _CARRIED, _DONE, _RETRIED = "todo", "carried", "done", "retried"


@dataclass(frozen=True)
class Work:
    """The work of a scoring run.

    Attributes:
        source: What is scored.
        marked: Each row's key with its status.
        rows: Rows by status.
        todo_by_file: Rows to predict by data file; all under `ALL_FILES` if only Spark can read the files.
        others: Files that also hold rows of another status.
    """

    source: ScoredTable
    marked: DataFrame
    rows: Mapping[str, int]
    todo_by_file: Mapping[str, int]
    others: frozenset[str]

    @property
    def todo_rows(self) -> int:
        """Rows to predict."""
        return self.rows.get(_TODO, 0)

    @property
    def carried_rows(self) -> int:
        """Rows to copy from predictions of the same images in other versions."""
        return self.rows.get(_CARRIED, 0)

    @property
    def retried_rows(self) -> int:
        """Rows with an error that may be temporary."""
        return self.rows.get(_RETRIED, 0)

    @property
    def total_rows(self) -> int:
        """Rows of the version and split."""
        return sum(self.rows.values())

    def images(self, files: Collection[str]) -> DataFrame:
        """Reads the rows to predict of some files, with their stored images."""
        from pyspark.sql import functions as f

        images = self.source.images_of(files)
        if self.others.isdisjoint(files):
            return images
        keys = self.marked.where(f.col(_STATUS) == _TODO)
        if ALL_FILES not in files:
            keys = keys.where(f.col(FILE).isin(list(files)))
        keys = keys.select("path", "content_hash").distinct()
        return images.alias("images").join(keys.alias("chosen"), same_row("images", "chosen"), "left_semi")

    def carried(self) -> DataFrame:
        """Gives the rows to copy, with their predictions and times."""
        from pyspark.sql import functions as f

        carried = self.marked.where(f.col(_STATUS) == _CARRIED)
        return carried.select(*PASSED, f"{_EARLIER}.*")


@contextmanager
def split_work(
    source: ScoredTable, results: PredictionsTable, state: PredictionsState, digest: str, *, retry: bool
) -> Iterator[Work]:
    """Compares the rows of a version with the predictions of one checkpoint in state `state`; reads no image.

    Args:
        source: What is scored.
        results: The predictions.
        state: The state up to which they are read.
        digest: Digest of the checkpoint.
        retry: Whether to try rows with a possibly temporary error again.

    Yields:
        The work; its DataFrames are valid only inside the `with`.

    Raises:
        InvalidArgumentError: If the predictions of this version were scored with another key.
    """
    predictions = None if state.version is None else results.read(state.version).where(of_scoring(source, digest))
    marked = _mark(source.keys(), predictions, source.version, results.copied, retry=retry).persist()
    try:
        work = _counted(source, marked)
        if predictions is not None and work.todo_rows + work.carried_rows == work.total_rows:
            _require_same_key(source, predictions, results.location, digest)
        yield work
    finally:
        marked.unpersist()


def _counted(source: ScoredTable, marked: DataFrame) -> Work:
    by_status: Counter[str] = Counter()
    todo: Counter[str] = Counter()
    others = set()
    counted = marked.groupBy(_STATUS, FILE).count().collect()
    # If Spark's names of files differ from the log's, the files cannot be read one by one.
    are_known = all(source.knows(row[FILE]) for row in counted)
    for row in counted:
        file = row[FILE] if are_known else ALL_FILES
        by_status[row[_STATUS]] += row["count"]
        if row[_STATUS] == _TODO:
            todo[file] += row["count"]
        else:
            others.add(file)
    return Work(source, marked, by_status, todo, frozenset(others))


def done_rows(source: ScoredTable, results: PredictionsTable, state: PredictionsState, digest: str) -> DataFrame:
    """Gives the keys of the rows that one checkpoint has scored in this version, up to `state`."""
    from pyspark.sql import functions as f

    predictions = results.read(int(state.version or 0)).where(of_scoring(source, digest))
    return predictions.where(f.col("version") == source.version).select("path", "content_hash")


def retried(source: ScoredTable, digest: str) -> Column:
    """The condition for the rows of a predictions table to try again."""
    from pyspark.sql import functions as f

    ours = of_scoring(source, digest) & (f.col("version") == source.version)
    ours = ours if source.split is None else ours & (f.col("split") == source.split)
    return ours & f.col("error").rlike(TRANSIENT)


def of_scoring(source: ScoredTable, digest: str) -> Column:
    """The condition for the rows of a predictions table that one checkpoint has predicted for a table.

    Rows without a content hash count only in this version: nothing else separates them from the rows of an earlier
    table at the same location.
    """
    from pyspark.sql import functions as f

    mark = mark_of(digest, source.location, source.snapshot.table_id, source.version)
    ours = (f.col("checkpoint_digest") == digest) & (f.col("table") == source.location)
    return ours & (f.col("content_hash").isNotNull() | f.col("batch_id").startswith(mark))


def _require_same_key(source: ScoredTable, predictions: DataFrame, location: str, digest: str) -> None:
    """Checks that rows without a match in the predictions are not from an earlier call with another key."""
    from pyspark.sql import functions as f

    ours = f.col("batch_id").startswith(mark_of(digest, source.location, source.snapshot.table_id, source.version))
    ours = ours if source.split is None else ours & (f.col("split") == source.split)
    if not predictions.where(ours).isEmpty():
        raise InvalidArgumentError(
            f"{location} has rows of {source.name} by this model, and none has the value of key="
            f"{source.columns.key!r}: they were scored with another key, or path column. Give that (key=..., "
            "--key), or another predictions table"
        )


def _mark(
    keys: DataFrame, predictions: DataFrame | None, version: int, copied: Sequence[str], *, retry: bool
) -> DataFrame:
    """Gives each row its status, and each row to copy the earlier prediction.

    Null paths and null hashes are equal, so that rows without them are not scored again.
    """
    from pyspark.sql import functions as f

    if predictions is None:
        return keys.withColumns({_STATUS: f.lit(_TODO), _EARLIER: f.lit(None)})
    is_retried = f.coalesce(f.col("error").rlike(TRANSIENT), f.lit(False)) if retry else f.lit(False)
    here = (
        predictions.where(f.col("version") == version)
        .groupBy("path", "content_hash")
        .agg(f.min(f.when(is_retried, _RETRIED).otherwise(_DONE)).alias("_here"))
    )
    elsewhere = (
        predictions.where((f.col("version") != version) & f.col("error").isNull() & f.col("content_hash").isNotNull())
        .groupBy("path", "content_hash")
        .agg(f.max_by(f.struct(*copied), f.col("scored_at")).alias(_EARLIER))
    )
    status = f.coalesce(f.col("_here"), f.when(f.col(_EARLIER).isNotNull(), _CARRIED).otherwise(_TODO))
    rows = keys.alias("keys")
    joined = rows.join(here.alias("here"), same_row("keys", "here"), "left").join(
        elsewhere.alias("elsewhere"), same_row("keys", "elsewhere"), "left"
    )
    return joined.select("keys.*", status.alias(_STATUS), _EARLIER)


def same_row(left: str, right: str) -> Column:
    """The condition that rows of two aliased DataFrames are the same; null equals null."""
    from pyspark.sql import functions as f

    same_path = f.col(f"{left}.path").eqNullSafe(f.col(f"{right}.path"))
    return same_path & f.col(f"{left}.content_hash").eqNullSafe(f.col(f"{right}.content_hash"))
