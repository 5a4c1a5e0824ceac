"""The rows of a version as far as their classes go: asked of Spark, or of columns that the driver has read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from . import schema
from .catalog import read_table
from .label_changes import ClassConflict

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from .table_columns import TableColumns

_MOST_EXAMPLES = 10
_Rows = TypeVar("_Rows", bound="ClassRows")


class ClassRows(Protocol):
    """The rows of one version."""

    def counts(self, classes: Collection[str]) -> Mapping[str, int]:
        """Counts the rows of some classes; a class without any is left out."""

    def sizes(self, classes: Collection[str]) -> Mapping[str, int]:
        """Counts the different contents of some classes."""

    def moved(self: _Rows, classes: Collection[str], after: _Rows) -> Mapping[tuple[str, str], int]:
        """Counts the contents of some classes that are in another class in `after`, by both classes."""

    def conflicts(self, batch_ids: Collection[str]) -> tuple[int, tuple[ClassConflict, ...]]:
        """Finds contents of some batches that are in several classes: their number, and the first of them."""


@dataclass(frozen=True)
class SparkClassRows:
    """Rows that Spark reads.

    Attributes:
        rows: The table.
    """

    rows: DataFrame

    def counts(self, classes: Collection[str]) -> Mapping[str, int]:
        """Counts the rows of some classes; a class without any is left out."""
        return _counted(self._of(classes))

    def sizes(self, classes: Collection[str]) -> Mapping[str, int]:
        """Counts the different contents of some classes."""
        return _counted(self._of(classes).select(schema.CONTENT_HASH, schema.LABEL_NAME).distinct())

    def moved(self, classes: Collection[str], after: SparkClassRows) -> Mapping[tuple[str, str], int]:
        """Counts the contents of some classes that are in another class in `after`, by both classes."""
        from pyspark.sql import functions as F

        def contents(table: DataFrame, name: str) -> DataFrame:
            return table.select(schema.CONTENT_HASH, F.col(schema.LABEL_NAME).alias(name)).distinct()

        others = after.rows.where(~_is_of(classes))
        joined = contents(self._of(classes), "old").join(contents(others, "new"), schema.CONTENT_HASH)
        return {(row["old"], row["new"]): row["count"] for row in joined.groupBy("old", "new").count().collect()}

    def conflicts(self, batch_ids: Collection[str]) -> tuple[int, tuple[ClassConflict, ...]]:
        """Finds contents of some batches that are in several classes: their number, and the first of them."""
        from pyspark.sql import functions as F

        if not self._may_conflict(batch_ids):
            return 0, ()
        named = self.rows.where(F.col(schema.LABEL_NAME).isNotNull())
        came = named.where(F.col(schema.BATCH_ID).isin(*batch_ids)).select(schema.CONTENT_HASH)
        classes = named.join(came, schema.CONTENT_HASH, "left_semi").groupBy(schema.CONTENT_HASH, schema.LABEL_NAME)
        entry = F.struct(schema.LABEL_NAME, schema.PATH)
        contents = classes.agg(F.min(schema.PATH).alias(schema.PATH)).groupBy(schema.CONTENT_HASH)
        found = contents.agg(F.sort_array(F.collect_list(entry)).alias("entries")).where(F.size("entries") > 1)
        first = found.orderBy(schema.CONTENT_HASH).limit(_MOST_EXAMPLES).collect()
        return found.count(), tuple(_conflict(row[schema.CONTENT_HASH], dict(row["entries"])) for row in first)

    def _of(self, classes: Collection[str]) -> DataFrame:
        return self.rows.where(_is_of(classes))

    def _may_conflict(self, batch_ids: Collection[str]) -> bool:
        """Tells in one pass over small numbers whether there is anything to look for: nearly always there is not.

        Two contents may share a number, and then there is nothing after all; one content always has the same.
        """
        from pyspark.sql import functions as F

        # A filter on the table would make Delta weigh the statistics of all its files first, for nothing.
        name = F.expr(f"CASE WHEN {schema.LABEL_NAME} IS NOT NULL THEN xxhash64({schema.LABEL_NAME}) END")
        contents = self.rows.groupBy(F.xxhash64(schema.CONTENT_HASH)).agg(
            F.min(name).alias("first"),
            F.max(name).alias("last"),
            F.bool_or(F.col(schema.BATCH_ID).isin(*batch_ids)).alias("came"),
        )
        return bool(contents.where("came AND first <> last").count())


@dataclass(frozen=True)
class ArrowClassRows:
    """Rows that the driver has read.

    Attributes:
        rows: The columns `path`, `content_hash`, `label_name` and `batch_id` of the table.
    """

    rows: pa.Table

    def counts(self, classes: Collection[str]) -> Mapping[str, int]:
        """Counts the rows of some classes; a class without any is left out."""
        return Counter(self._of(classes).column(schema.LABEL_NAME).to_pylist())

    def sizes(self, classes: Collection[str]) -> Mapping[str, int]:
        """Counts the different contents of some classes."""
        return Counter(name for _, name in _contents(self._of(classes)))

    def moved(self, classes: Collection[str], after: ArrowClassRows) -> Mapping[tuple[str, str], int]:
        """Counts the contents of some classes that are in another class in `after`, by both classes."""
        went: dict[str, set[str]] = {}
        for content, name in _contents(self._of(classes)):
            went.setdefault(content, set()).add(name)
        there = _contents(after._where(schema.CONTENT_HASH, went))
        others = [(content, new) for content, new in there if new not in classes]
        return Counter((old, new) for content, new in others for old in went[content])

    def conflicts(self, batch_ids: Collection[str]) -> tuple[int, tuple[ClassConflict, ...]]:
        """Finds contents of some batches that are in several classes: their number, and the first of them."""
        came = set(self._where(schema.BATCH_ID, batch_ids).column(schema.CONTENT_HASH).to_pylist())
        rows = self._where(schema.CONTENT_HASH, came)
        columns = (rows.column(name).to_pylist() for name in (schema.CONTENT_HASH, schema.LABEL_NAME, schema.PATH))
        classes: dict[str, dict[str, str]] = {}
        for content, name, path in zip(*columns, strict=True):
            if content is not None and name is not None:
                paths = classes.setdefault(content, {})
                paths[name] = min(path, paths.get(name, path))
        several = sorted(content for content, paths in classes.items() if len(paths) > 1)
        return len(several), tuple(_conflict(content, classes[content]) for content in several[:_MOST_EXAMPLES])

    def _of(self, classes: Collection[str]) -> pa.Table:
        return self._where(schema.LABEL_NAME, classes)

    def _where(self, column: str, values: Collection[str]) -> pa.Table:
        import pyarrow as pa
        import pyarrow.compute as pc

        wanted = pa.array([value for value in values if value is not None], pa.string())
        return self.rows.filter(pc.is_in(self.rows.column(column), value_set=wanted))


def class_rows(
    spark: SparkSession,
    location: str,
    columns: TableColumns | None,
    versions: tuple[int | None, int],
    added: DataFrame | None = None,
) -> tuple[ClassRows | None, ClassRows]:
    """Gives the rows of two versions of a table, both from one reader.

    Args:
        spark: The session.
        location: The table.
        columns: The table, where the driver may read it.
        versions: A version, None when there was none yet; and a later version, or the same.
        added: The rows by which they differ, where that is known.
    """
    before, after = versions
    if columns is not None:
        first = None if before is None else columns.at(before)
        second = first if after == before else columns.at(after)
        if second is not None and (first is not None or before is None):
            return None if first is None else ArrowClassRows(first), ArrowClassRows(second)
    stored = None if before is None else read_table(spark, location, before)
    if stored is None:
        return None, SparkClassRows(read_table(spark, location, after) if added is None else added)
    if added is not None:
        rows = stored.unionByName(added, allowMissingColumns=True)
    else:
        rows = stored if after == before else read_table(spark, location, after)
    return SparkClassRows(stored), SparkClassRows(rows)


def _is_of(classes: Collection[str]) -> Column:
    from pyspark.sql import functions as F

    return F.col(schema.LABEL_NAME).isin(*classes)


def _counted(rows: DataFrame) -> dict[str, int]:
    return {row[schema.LABEL_NAME]: row["count"] for row in rows.groupBy(schema.LABEL_NAME).count().collect()}


def _contents(rows: pa.Table) -> set[tuple[str, str]]:
    """Gives the different pairs of content and class, without those that lack one."""
    pairs = zip(*(rows.column(name).to_pylist() for name in (schema.CONTENT_HASH, schema.LABEL_NAME)), strict=True)
    return {(content, name) for content, name in pairs if content is not None and name is not None}


def _conflict(content: str, paths: Mapping[str, str]) -> ClassConflict:
    """Makes a finding of one content's classes, with a file of each."""
    return ClassConflict(content, tuple(sorted(paths)), tuple(paths[name] for name in sorted(paths)))
