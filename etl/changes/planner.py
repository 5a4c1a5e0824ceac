"""Plans an ingest: one join of the source with the records of its files, in Spark; `rules` decide row by row."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ...spark.workers import map_in_arrow
from ..files import NOT_LOOKED_INTO
from ..model import schema
from ..sources.source import IGNORED, Listing, content_hashes
from ..spark.catalog import column_in_one_form
from .plan import CHANGED, DOUBLED, ELSEWHERE, GONE, KNOWN, STATUS, STORED_HASH, Plan
from .rules import COUNTS, DECIDED, TABLES, Facts, PlanRules, decide, decide_after_reading, without_unlisted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_READ = "content_read"
_ROWS = "stored_rows"
# What the source knows of a path; it precedes `TABLES` in the order of the arguments of `decide`.
_LISTED = "listed"


def make_plan(listing: Listing, stored: DataFrame, bad: DataFrame, reseen: DataFrame, rules: PlanRules) -> Plan:
    """Compares a listing with the records of files, by path, size and time of change."""
    known = (stored, bad, reseen)
    plan = Plan.of(_decided(listing, known, functools.partial(_decide, root=listing.root, rules=rules)))
    if plan.counts[GONE] and any(plan.ignored[reason] for reason in NOT_LOOKED_INTO):
        unseen = plan.files.where(plan.files[IGNORED].isin(*NOT_LOOKED_INTO)).select(schema.PATH).collect()
        folders = frozenset(row[0] for row in unseen)
        plan = _in_place_of(plan, _mapped(plan.files, functools.partial(without_unlisted, folders=folders)))
    statuses = [CHANGED, KNOWN] if rules.verify_content else [CHANGED]
    count = sum(plan.comparable[status] for status in statuses)
    return _in_place_of(plan, _compared_by_content(plan.files, listing, statuses, count)) if count else plan


def _in_place_of(before: Plan, files: DataFrame) -> Plan:
    plan = Plan.of(files)
    before.release()
    return plan


def _compared_by_content(files: DataFrame, listing: Listing, statuses: Sequence[str], count: int) -> DataFrame:
    """Reads the files of some statuses, at most `count`, whose content is not known yet, and decides again."""
    from pyspark.sql import functions as F

    candidates = files.where(F.col(STATUS).isin(statuses) & F.col(STORED_HASH).isNotNull())
    unread = candidates.where(F.col(schema.CONTENT_HASH).isNull())
    unread = unread.select(schema.PATH, schema.SOURCE_LENGTH, schema.CONTENT_HASH)
    hashed = content_hashes(listing, unread, count).withColumnRenamed("hash", _READ)
    read = files.join(hashed, schema.PATH, "left").withColumn(_READ, F.coalesce(_READ, schema.CONTENT_HASH))
    return _mapped(read, _decide_after_reading).drop(_READ)


def _decided(listing: Listing, tables: Sequence[DataFrame], rule: Callable[[pa.Table], pa.Table]) -> DataFrame:
    """Joins all records of a path into one row, with one shuffle for all tables, and decides."""
    from pyspark.sql import functions as F

    columns = [name for name in listing.files.columns if name != schema.PATH]
    facts = [listing.files.select(schema.PATH, F.struct(*columns).alias(_LISTED))]
    path = column_in_one_form(schema.PATH).alias(schema.PATH)
    for rows, (name, known) in zip(tables, TABLES.items(), strict=True):
        facts.append(rows.select(path, F.struct(*known).alias(name)))
    union = functools.reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), facts)
    # Several rows of a path, as others may write them, count as the largest.
    rows_of_path = F.count("stored").alias(_ROWS)
    paths = union.groupBy(schema.PATH).agg(*[F.max(name).alias(name) for name in (_LISTED, *TABLES)], rows_of_path)
    ddl = [f"`{field.name}` {field.dataType.simpleString()}" for field in paths.schema[:2]]
    ddl += [f"{name} {kind}" for name, kind in {**DECIDED, DOUBLED: "BIGINT"}.items()]
    decided = _mapped(paths, rule, ", ".join(ddl))
    return decided.select(schema.PATH, f"{_LISTED}.*", *DECIDED, DOUBLED)


def _decide(rows: pa.Table, root: str | None, rules: PlanRules) -> pa.Table:
    paths = rows.column(schema.PATH).combine_chunks()
    names = (_LISTED, *TABLES)
    listed, stored, bad, reseen = (Facts.of_structs(rows.column(name).combine_chunks()) for name in names)
    decided = decide(paths, listed, stored, bad, reseen, root, rules)
    for name in decided.column_names:
        rows = rows.append_column(name, decided.column(name))
    return _with_doubled(rows).select([schema.PATH, _LISTED, *DECIDED, DOUBLED])


def _with_doubled(rows: pa.Table) -> pa.Table:
    """Counts the rows of each path beyond the first, and leaves out paths that neither count nor have any."""
    doubled = pc.max_element_wise(pc.subtract(rows.column(_ROWS), 1), 0)
    counts = rows.column(COUNTS)
    status = pc.if_else(counts, rows.column(STATUS), pa.scalar(ELSEWHERE))
    rows = rows.set_column(rows.schema.get_field_index(STATUS), STATUS, status).append_column(DOUBLED, doubled)
    return rows.filter(pc.or_(counts, pc.greater(doubled, 0)))


def _decide_after_reading(rows: pa.Table) -> pa.Table:
    return decide_after_reading(rows, rows.column(_READ))


def _mapped(files: DataFrame, rule: Callable[[pa.Table], pa.Table], ddl: str | None = None) -> DataFrame:
    """Applies a rule to the rows of each Arrow batch; the columns stay unless others are given."""
    return map_in_arrow(files, functools.partial(_each_batch, rule), files.schema if ddl is None else ddl)


def _each_batch(rule: Callable[[pa.Table], pa.Table], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from rule(pa.Table.from_batches([batch])).combine_chunks().to_batches()
