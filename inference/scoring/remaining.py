"""The rows of a version that remain to be scored: one anti-join of its keys with the predictions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import InvalidArgumentError
from ...etl.spark.catalog import sql_literal
from ...spark.port import kept
from ..model.failures import TRANSIENT
from .images import FILE
from .predictions import PASSED, PredictionsState, PredictionsTable, mark_of
from .source import ScoredTable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Whether a row is copied from another version; a column that no predictions table gets.
IS_COPIED = "_is_copied"
_EARLIER, _SPLITS = "_earlier", "_splits"


@dataclass(frozen=True)
class RemainingRows:
    """The rows of a version and split that one checkpoint has not scored yet."""

    marked: DataFrame  # Each row's columns, and its prediction in another version, if it has one there
    todo_by_file: Mapping[str, int]  # Rows to predict by data file
    copied_rows: int  # Rows to copy from predictions of the same images in other versions

    @property
    def todo_rows(self) -> int:
        """Rows to predict."""
        return sum(self.todo_by_file.values())

    def todo(self, files: Collection[str]) -> DataFrame:
        """Gives the rows to predict of some files."""
        from pyspark.sql import functions as f

        return self.marked.where(~f.col(IS_COPIED) & f.col(FILE).isin(list(files))).drop(_EARLIER, IS_COPIED)

    def copied(self) -> DataFrame:
        """Gives the rows to copy, with their predictions and times."""
        from pyspark.sql import functions as f

        copied = self.marked.where(f.col(IS_COPIED))
        return copied.select(*PASSED, f"{_EARLIER}.*", IS_COPIED)


@contextmanager
def remaining_rows(
    source: ScoredTable, results: PredictionsTable, state: PredictionsState, digest: str
) -> Iterator[RemainingRows]:
    """Compares the rows of a version with the predictions of one checkpoint in state `state`; reads no image."""
    from pyspark.sql import functions as f

    rows = source.rows()
    if state.version is None:
        marked = rows.withColumns({_EARLIER: f.lit(None), IS_COPIED: f.lit(False)})
    else:
        predictions = results.read(state.version).where(of_scoring(source, digest))
        marked = _marked(rows, predictions, source, results.copied)
    with kept(marked) as marked:
        counted = marked.groupBy(FILE, IS_COPIED).count().collect()
        todo = {row[FILE]: int(row["count"]) for row in counted if not row[IS_COPIED]}
        yield RemainingRows(marked, todo, sum(int(row["count"]) for row in counted if row[IS_COPIED]))


def _marked(rows: DataFrame, predictions: DataFrame, source: ScoredTable, kept: Sequence[str]) -> DataFrame:
    """Drops the rows that are scored in this version, and adds to each other one its prediction in another."""
    from pyspark.sql import functions as f

    # The predictions are read once: each scan of a Delta table and each exchange is a Spark job.
    is_here = f.col("version") == source.version
    counted = predictions.where(is_here | (f.col("error").isNull() & f.col("content_hash").isNotNull()))
    columns = ", ".join(f"`{name}`" for name in kept)
    latest = f"max_by(struct({columns}), scored_at) FILTER (WHERE version <> {source.version})"
    # Another split may have a row of the same key.
    of_split = f.coalesce("split", f.lit(""))
    by_row = counted.groupBy("path", "content_hash").agg(
        f.collect_set(f.when(is_here, of_split)).alias(_SPLITS), f.expr(latest).alias(_EARLIER)
    )
    joined = rows.alias("rows").join(by_row.alias("predicted"), same_row("rows", "predicted"), "left")
    is_scored = f.array_contains(_SPLITS, f.coalesce("rows.split", f.lit("")))
    remaining = joined.where(~f.coalesce(is_scored, f.lit(False)))
    return remaining.select("rows.*", _EARLIER).withColumn(IS_COPIED, f.col(_EARLIER).isNotNull())


def without(rows: DataFrame, others: DataFrame) -> DataFrame:
    """Drops the rows whose key is in another DataFrame: an anti-join."""
    return rows.alias("rows").join(others.alias("others"), same_row("rows", "others"), "left_anti")


def same_row(left: str, right: str) -> Column:
    """The condition that rows of two aliased DataFrames are the same; null equals null."""
    from pyspark.sql import functions as f

    same_path = f.col(f"{left}.path").eqNullSafe(f.col(f"{right}.path"))
    return same_path & f.col(f"{left}.content_hash").eqNullSafe(f.col(f"{right}.content_hash"))


def to_retry(scored: str) -> str:
    """The condition for those of the scored rows of a predictions table whose error may be temporary."""
    return f"{scored} AND error RLIKE {sql_literal(TRANSIENT)}"


def in_version(source: ScoredTable, digest: str) -> str:
    """The condition for the rows of a predictions table that one checkpoint has predicted for a version and split."""
    ours = f"{of_scoring(source, digest)} AND version = {source.version}"
    return ours if source.split is None else f"{ours} AND split = {sql_literal(source.split)}"


def of_scoring(source: ScoredTable, digest: str) -> str:
    """The condition for the rows of a predictions table that one checkpoint has predicted for a table."""
    # Rows without a content hash count only in this version: nothing else separates them from the rows of an earlier
    # table at the same location.
    mark = mark_of(digest, source.location, source.snapshot.table_id, source.version)
    has_key = f"(content_hash IS NOT NULL OR startswith(batch_id, {sql_literal(mark)}))"
    ours = f"checkpoint_digest = {sql_literal(digest)} AND `table` = {sql_literal(source.location)}"
    return f"{ours} AND {has_key}"


def require_same_key(source: ScoredTable, results: PredictionsTable, state: PredictionsState, digest: str) -> None:
    """Checks a version of which no row is in the predictions: an earlier call may have had another key."""
    from pyspark.sql import functions as f

    mark = mark_of(digest, source.location, source.snapshot.table_id, source.version)
    if state.version is None or not state.may_have(mark):
        return
    ours = f.col("batch_id").startswith(mark)
    ours = ours if source.split is None else ours & (f.col("split") == source.split)
    if not results.read(state.version).where(ours).isEmpty():
        raise InvalidArgumentError(
            f"{results.location} has rows of {source.name} by this model, and none has the value of key="
            f"{source.columns.key!r}: they were scored with another key, or path column. Give that (key=..., "
            "--key), or another predictions table"
        )
