"""The rows of a version as far as their classes go: asked of Spark, or of columns that the driver has read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from ..model import schema
from ..spark.catalog import read_table
from .label_changes import ClassConflict, Conflicts, SplitConflict

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from ..log.table_columns import TableColumns

_MOST_EXAMPLES = 10
_Rows = TypeVar("_Rows", bound="ClassRows")
# How many contents, and of the first of them the values with a file of each.
_Found = tuple[int, list[tuple[str, Mapping[str, str]]]]


class ClassRows(Protocol):
    """The rows of one version."""

    def counts(self, classes: Collection[str]) -> Mapping[str, int]:
        """Counts the rows of some classes; a class without any is left out."""

    def sizes(self, classes: Collection[str]) -> Mapping[str, int]:
        """Counts the different contents of some classes."""

    def moved(self: _Rows, classes: Collection[str], after: _Rows) -> Mapping[tuple[str, str], int]:
        """Counts the contents of some classes that are in another class in `after`, by both classes."""

    def conflicts(self, batch_ids: Collection[str]) -> Conflicts:
        """Finds contents of some batches that are in several classes, and those that are in several splits."""


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

    def conflicts(self, batch_ids: Collection[str]) -> Conflicts:
        """Finds contents of some batches that are in several classes, and those that are in several splits."""
        in_classes, in_splits = self._may_conflict(batch_ids)
        nothing: _Found = (0, [])
        classes = self._in_several(schema.LABEL_NAME, batch_ids) if in_classes else nothing
        return _conflicts(classes, self._in_several(schema.SPLIT, batch_ids) if in_splits else nothing)

    def _in_several(self, column: str, batch_ids: Collection[str]) -> _Found:
        """Counts contents of some batches that have several values in a column; gives the first of them."""
        from pyspark.sql import functions as F

        named = self.rows.where(F.col(column).isNotNull())
        came = named.where(F.col(schema.BATCH_ID).isin(*batch_ids)).select(schema.CONTENT_HASH)
        values = named.join(came, schema.CONTENT_HASH, "left_semi").groupBy(schema.CONTENT_HASH, column)
        entry = F.struct(column, schema.PATH)
        contents = values.agg(F.min(schema.PATH).alias(schema.PATH)).groupBy(schema.CONTENT_HASH)
        found = contents.agg(F.sort_array(F.collect_list(entry)).alias("entries")).where(F.size("entries") > 1)
        first = found.orderBy(schema.CONTENT_HASH).limit(_MOST_EXAMPLES).collect()
        return found.count(), [(row[schema.CONTENT_HASH], dict(row["entries"])) for row in first]

    def _of(self, classes: Collection[str]) -> DataFrame:
        return self.rows.where(_is_of(classes))

    def _may_conflict(self, batch_ids: Collection[str]) -> tuple[bool, bool]:
        """Tells in one pass over small numbers whether there is anything to look for: nearly always there is not.

        Two contents may share a number, and then there is nothing after all; one content always has the same.
        """
        from pyspark.sql import functions as F

        # A filter on the table would make Delta weigh the statistics of all its files first, for nothing.
        name, split = (
            F.expr(f"CASE WHEN {column} IS NOT NULL THEN xxhash64({column}) END")
            for column in (schema.LABEL_NAME, schema.SPLIT)
        )
        contents = self.rows.groupBy(F.xxhash64(schema.CONTENT_HASH)).agg(
            (F.min(name) < F.max(name)).alias("classes"),
            (F.min(split) < F.max(split)).alias("splits"),
            F.bool_or(F.col(schema.BATCH_ID).isin(*batch_ids)).alias("came"),
        )
        found = contents.where("came").agg(F.bool_or("classes"), F.bool_or("splits")).collect()[0]
        return bool(found[0]), bool(found[1])


@dataclass(frozen=True)
class ArrowClassRows:
    """Rows that the driver has read.

    Attributes:
        rows: The columns `path`, `content_hash`, `label_name`, `split` and `batch_id` of the table.
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

    def conflicts(self, batch_ids: Collection[str]) -> Conflicts:
        """Finds contents of some batches that are in several classes, and those that are in several splits."""
        came = set(self._where(schema.BATCH_ID, batch_ids).column(schema.CONTENT_HASH).to_pylist())
        rows = self._where(schema.CONTENT_HASH, came)
        return _conflicts(*(_in_several(rows, column) for column in (schema.LABEL_NAME, schema.SPLIT)))

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
    """Returns the rows of two versions of a table, both from one reader.

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
    """Returns the different pairs of content and class, without those that lack one."""
    pairs = zip(*(rows.column(name).to_pylist() for name in (schema.CONTENT_HASH, schema.LABEL_NAME)), strict=True)
    return {(content, name) for content, name in pairs if content is not None and name is not None}


def _in_several(rows: pa.Table, column: str) -> _Found:
    """Counts contents that have several values in a column; gives the first of them."""
    columns = (rows.column(name).to_pylist() for name in (schema.CONTENT_HASH, column, schema.PATH))
    values: dict[str, dict[str, str]] = {}
    for content, value, path in zip(*columns, strict=True):
        if content is not None and value is not None:
            paths = values.setdefault(content, {})
            paths[value] = min(path, paths.get(value, path))
    several = sorted(content for content, paths in values.items() if len(paths) > 1)
    return len(several), [(content, values[content]) for content in several[:_MOST_EXAMPLES]]


def _conflicts(classes: _Found, splits: _Found) -> Conflicts:
    return Conflicts(
        classes[0],
        tuple(ClassConflict(*_sides(*found)) for found in classes[1]),
        splits[0],
        tuple(SplitConflict(*_sides(*found)) for found in splits[1]),
    )


def _sides(content: str, paths: Mapping[str, str]) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Returns one content's classes or splits, with a file of each."""
    return content, tuple(sorted(paths)), tuple(paths[name] for name in sorted(paths))
