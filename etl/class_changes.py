"""Looks for what an ingest did to the classes: in its plan, and in the rows that it has committed."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from . import schema
from .label_changes import ClassConflict, Rename, find_renames
from .plan import Plan

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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


def find_renamed(
    stored: DataFrame, rows: DataFrame, vanished: Collection[str], present: Collection[str]
) -> tuple[Rename, ...]:
    """Finds the new names of classes that have vanished.

    Args:
        stored: The table while it had all rows of those classes.
        rows: The table as it is now.
        vanished: What `find_vanished` has found.
        present: Classes that the source has.
    """
    from pyspark.sql import functions as F

    if not vanished:
        return ()

    def contents(table: DataFrame, which: Column, name: str) -> DataFrame:
        return table.where(which).select(schema.CONTENT_HASH, F.col(schema.LABEL_NAME).alias(name)).distinct()

    went = F.col(schema.LABEL_NAME).isin(*vanished)
    old, new = contents(stored, went, "old"), contents(rows, ~went, "new")
    joined = old.join(new, schema.CONTENT_HASH).groupBy("old", "new").agg(F.count("*").alias("images"))
    moved = {(row["old"], row["new"]): row["images"] for row in joined.collect()}
    sizes = {row["old"]: row["count"] for row in old.groupBy("old").count().collect()}
    return find_renames(sizes, present, moved)


def find_conflicts(rows: DataFrame, batch_ids: Collection[str]) -> tuple[int, tuple[ClassConflict, ...]]:
    """Finds contents of some batches that are in several classes: their number, and the first of them.

    Args:
        rows: The table.
        batch_ids: The batches.
    """
    from pyspark.sql import functions as F

    if not batch_ids or not _may_conflict(rows, batch_ids):
        return 0, ()
    named = rows.where(F.col(schema.LABEL_NAME).isNotNull())
    came = named.where(F.col(schema.BATCH_ID).isin(*batch_ids)).select(schema.CONTENT_HASH)
    classes = named.join(came, schema.CONTENT_HASH, "left_semi").groupBy(schema.CONTENT_HASH, schema.LABEL_NAME)
    entry = F.struct(schema.LABEL_NAME, schema.PATH)
    contents = classes.agg(F.min(schema.PATH).alias(schema.PATH)).groupBy(schema.CONTENT_HASH)
    found = contents.agg(F.sort_array(F.collect_list(entry)).alias("entries")).where(F.size("entries") > 1)
    count = found.count()
    first = found.orderBy(schema.CONTENT_HASH).limit(_MOST_EXAMPLES).collect()
    return count, tuple(
        ClassConflict(
            row[schema.CONTENT_HASH],
            tuple(entry[schema.LABEL_NAME] for entry in row["entries"]),
            tuple(entry[schema.PATH] for entry in row["entries"]),
        )
        for row in first
    )


def _may_conflict(rows: DataFrame, batch_ids: Collection[str]) -> bool:
    """Tells in one pass over small numbers whether there is anything to look for: nearly always there is not.

    Two contents may share a number, and then there is nothing after all; one content always has the same.
    """
    from pyspark.sql import functions as F

    # A filter on the table would make Delta weigh the statistics of all its files first, for nothing.
    name = F.expr(f"CASE WHEN {schema.LABEL_NAME} IS NOT NULL THEN xxhash64({schema.LABEL_NAME}) END")
    contents = rows.groupBy(F.xxhash64(schema.CONTENT_HASH)).agg(
        F.min(name).alias("first"),
        F.max(name).alias("last"),
        F.bool_or(F.col(schema.BATCH_ID).isin(*batch_ids)).alias("came"),
    )
    return bool(contents.where("came AND first <> last").count())
