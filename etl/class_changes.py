"""Looks for what an ingest did to the classes: in its plan, and in the rows that it has committed."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from . import schema
from .catalog import read_table
from .label_changes import ClassChanges, ClassConflict, Rename, find_renames
from .plan import Plan

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_MOST_EXAMPLES = 10


def find_vanished(plan: Plan, stored: DataFrame | None) -> tuple[str, ...]:
    """Finds classes of stored rows that no file of the source has any more, and no row of another source.

    Args:
        plan: The whole plan of the source.
        stored: The table that it was made for, or None when there is none yet.
    """
    from pyspark.sql import functions as F

    if stored is None or not plan.lost_classes:
        return ()
    names = F.col(schema.LABEL_NAME)
    rows = stored.where(names.isin(plan.lost_classes)).groupBy(names.alias("name")).agg(F.count("*").alias("rows"))
    return tuple(sorted(row["name"] for row in rows.collect() if row["rows"] == plan.lost_by_class[row["name"]]))


def find_class_changes(
    spark: SparkSession,
    location: str,
    version: int,
    batch_ids: Collection[str],
    vanished: Collection[str] = (),
    present: Collection[str] = (),
    before: int | None = None,
) -> ClassChanges:
    """Looks for renamed classes, and for contents of some batches that are in several classes.

    Args:
        spark: The session.
        location: The table.
        version: The version that holds the batches.
        batch_ids: The batches that were committed.
        vanished: What `find_vanished` has found.
        present: Classes that the source has.
        before: The version that still has the rows of those classes; None when none has vanished.
    """
    conflicts, examples = _conflicts(read_table(spark, location, version), batch_ids) if batch_ids else (0, ())
    renamed: tuple[Rename, ...] = ()
    if vanished and before is not None:
        renamed = _renames(read_table(spark, location, before), read_table(spark, location, version), vanished, present)
    return ClassChanges(tuple(vanished), renamed, conflicts, examples)


def _conflicts(rows: DataFrame, batch_ids: Collection[str]) -> tuple[int, tuple[ClassConflict, ...]]:
    from pyspark.sql import functions as F

    named = rows.where(F.col(schema.LABEL_NAME).isNotNull())
    came = named.where(F.col(schema.BATCH_ID).isin(*batch_ids)).select(schema.CONTENT_HASH)
    classes = named.join(came, schema.CONTENT_HASH, "left_semi").groupBy(schema.CONTENT_HASH, schema.LABEL_NAME)
    entry = F.struct(schema.LABEL_NAME, schema.PATH)
    contents = classes.agg(F.min(schema.PATH).alias(schema.PATH)).groupBy(schema.CONTENT_HASH)
    found = contents.agg(F.sort_array(F.collect_list(entry)).alias("entries")).where(F.size("entries") > 1)
    count = found.count()
    if not count:
        return 0, ()
    first = found.orderBy(schema.CONTENT_HASH).limit(_MOST_EXAMPLES).collect()
    return count, tuple(
        ClassConflict(
            row[schema.CONTENT_HASH],
            tuple(entry[schema.LABEL_NAME] for entry in row["entries"]),
            tuple(entry[schema.PATH] for entry in row["entries"]),
        )
        for row in first
    )


def _renames(
    old_rows: DataFrame, rows: DataFrame, vanished: Collection[str], present: Collection[str]
) -> tuple[Rename, ...]:
    from pyspark.sql import functions as F

    def contents(table: DataFrame, which: Column, name: str) -> DataFrame:
        return table.where(which).select(schema.CONTENT_HASH, F.col(schema.LABEL_NAME).alias(name)).distinct()

    went = F.col(schema.LABEL_NAME).isin(*vanished)
    old, new = contents(old_rows, went, "old"), contents(rows, ~went, "new")
    joined = old.join(new, schema.CONTENT_HASH).groupBy("old", "new").agg(F.count("*").alias("images"))
    moved = {(row["old"], row["new"]): row["images"] for row in joined.collect()}
    sizes = {row["old"]: row["count"] for row in old.groupBy("old").count().collect()}
    return find_renames(sizes, present, moved)
