"""The rows of a version as far as their classes go."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, TypeAlias

from ...spark.port import count_rows
from ..model import schema
from .label_changes import Conflict

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_MOST_EXAMPLES = 10
# How many contents, and the first of them.
Conflicts: TypeAlias = tuple[int, tuple[Conflict, ...]]


def counts(rows: DataFrame, classes: Collection[str]) -> Mapping[str, int]:
    """Counts the rows of some classes; a class without any is left out."""
    return _counted(rows.where(_is_of(classes)))


def sizes(rows: DataFrame, classes: Collection[str]) -> Mapping[str, int]:
    """Counts the different contents of some classes."""
    return _counted(rows.where(_is_of(classes)).select(schema.CONTENT_HASH, schema.LABEL_NAME).distinct())


def moved(before: DataFrame, after: DataFrame, classes: Collection[str]) -> Mapping[tuple[str, str], int]:
    """Counts the contents of some classes that are in another class in `after`, by both classes."""
    from pyspark.sql import functions as F

    def contents(table: DataFrame, name: str) -> DataFrame:
        return table.select(schema.CONTENT_HASH, F.col(schema.LABEL_NAME).alias(name)).distinct()

    old, new = contents(before.where(_is_of(classes)), "old"), contents(after.where(~_is_of(classes)), "new")
    joined = old.join(new, schema.CONTENT_HASH).groupBy("old", "new").count()
    return {(row["old"], row["new"]): row["count"] for row in joined.collect()}


def conflicts(rows: DataFrame, batch_ids: Collection[str]) -> tuple[Conflicts, Conflicts]:
    """Finds contents of some batches that are in several classes, and those that are in several splits."""
    in_classes, in_splits = _may_conflict(rows, batch_ids)
    classes = _in_several(rows, schema.LABEL_NAME, batch_ids) if in_classes else (0, ())
    return classes, _in_several(rows, schema.SPLIT, batch_ids) if in_splits else (0, ())


def _in_several(rows: DataFrame, column: str, batch_ids: Collection[str]) -> Conflicts:
    """Counts contents of some batches that have several values in a column; gives the first of them."""
    from pyspark.sql import functions as F

    named = rows.where(F.col(column).isNotNull())
    came = named.where(F.col(schema.BATCH_ID).isin(*batch_ids)).select(schema.CONTENT_HASH)
    values = named.join(came, schema.CONTENT_HASH, "left_semi").groupBy(schema.CONTENT_HASH, column)
    entry = F.struct(column, schema.PATH)
    contents = values.agg(F.min(schema.PATH).alias(schema.PATH)).groupBy(schema.CONTENT_HASH)
    found = contents.agg(F.sort_array(F.collect_list(entry)).alias("entries")).where(F.size("entries") > 1)
    first = found.orderBy(schema.CONTENT_HASH).limit(_MOST_EXAMPLES).collect()
    examples = tuple(Conflict(row[schema.CONTENT_HASH], *zip(*row["entries"], strict=True)) for row in first)
    return count_rows(found), examples


def _may_conflict(rows: DataFrame, batch_ids: Collection[str]) -> tuple[bool, bool]:
    """Finds by one query of counts whether there is anything to look for; there rarely is.

    Two contents may share a number, and then there is nothing after all; one content always has the same.
    """
    from pyspark.sql import functions as F

    # A filter on the table would make Delta weigh the statistics of all its files first, for nothing.
    name, split = (
        F.expr(f"CASE WHEN {column} IS NOT NULL THEN xxhash64({column}) END")
        for column in (schema.LABEL_NAME, schema.SPLIT)
    )
    contents = rows.groupBy(F.xxhash64(schema.CONTENT_HASH)).agg(
        (F.min(name) < F.max(name)).alias("classes"),
        (F.min(split) < F.max(split)).alias("splits"),
        F.bool_or(F.col(schema.BATCH_ID).isin(*batch_ids)).alias("came"),
    )
    found = contents.where("came").agg(F.bool_or("classes"), F.bool_or("splits")).collect()[0]
    return bool(found[0]), bool(found[1])


def _is_of(classes: Collection[str]) -> Column:
    from pyspark.sql import functions as F

    return F.col(schema.LABEL_NAME).isin(*classes)


def _counted(rows: DataFrame) -> dict[str, int]:
    return {row[schema.LABEL_NAME]: row["count"] for row in rows.groupBy(schema.LABEL_NAME).count().collect()}
