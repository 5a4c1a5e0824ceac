"""Plans an ingest by Spark: for any source and any number of files."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..files.walk import NOT_LOOKED_INTO
from ..model import schema
from ..sources.contents import content_hashes
from ..sources.listing import IGNORED, LABEL_RANK, Listing
from ..spark.path_forms import column_in_one_form
from .ingest_plan import (
    BYTES,
    CHANGED,
    FILES,
    GONE,
    GROUPED_BY,
    KNOWN,
    LARGEST,
    MOST_SUFFIXES,
    RANK,
    STATUS,
    STORED_HASH,
    SUFFIX,
    TOUCHED,
    WORK,
    Plan,
    by_reason,
)
from .rules import (
    AGAIN,
    BAD,
    COUNTS,
    DECIDED,
    DECIDED_DDL,
    NO_RETRY,
    STORED,
    Retry,
    Side,
    decide,
    decide_after_reading,
    without_unseen,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_NUMBER = "number"
_COMPARABLE = "comparable"
_READ = "content_read"
# What knows of a path: the source, the table, its quarantine, its stamps.
_SIDES = ("listed", "stored", "bad", "again")


@dataclass(kw_only=True)
class SparkPlan(Plan):
    """A plan whose files Spark keeps.

    Attributes:
        frame: `Plan.files` with every file of the source, cached until `release`.
        comparable: Number of files, by status, of which the table says everything but the content alike.
    """

    frame: DataFrame
    comparable: Counter[str] = field(default_factory=Counter)

    @property
    def files(self) -> DataFrame:
        """Every file of the source, and what is gone."""
        return self.frame

    def ignored_suffixes(self) -> dict[str, dict[str, int]]:
        """Counts what was passed over by reason and suffix."""
        from pyspark.sql import functions as F

        suffix = F.lower(F.regexp_extract(schema.PATH, SUFFIX, 1))
        passed = self.frame.where(F.col(STATUS).isNull()).groupBy(IGNORED, suffix).count()
        passed = passed.orderBy(F.desc("count")).limit(MOST_SUFFIXES * len(self.ignored))
        return by_reason((str(row[0]), row[1], row[2]) for row in passed.collect())

    def release(self) -> None:
        """Lets Spark forget the cached files."""
        self.frame.unpersist()

    def batches(self, max_files: int) -> Iterator[Plan]:
        """Yields the plan in parts by ranges of paths.

        Spark may compute the files once more, after it has lost an executor, and find others than before; but what a
        part has read is in the range of no other.
        """
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        if self.work <= max_files:
            yield self
            return
        numbered = self.work_files().select(
            schema.PATH, F.row_number().over(Window.orderBy(schema.PATH)).alias(_NUMBER)
        )
        starts = [row[0] for row in numbered.where(F.col(_NUMBER) % max_files == 1 % max_files).collect()]
        starts.sort(key=str.encode)  # as Spark compares them
        path, is_work = F.col(schema.PATH), F.coalesce(F.col(STATUS).isin(*WORK), F.lit(False))
        for start, end in itertools.zip_longest(starts, starts[1:]):
            wanted = is_work if end is None else is_work & (path < end)
            wanted = ~is_work | wanted if start == starts[0] else wanted & (path >= start)
            part = _counted(self.frame.where(wanted))
            try:
                yield part
            finally:
                part.release()


def make_plan(
    listing: Listing,
    stored: DataFrame | None,
    quarantined: DataFrame | None,
    stamps: DataFrame | None = None,
    *,
    verify_content: bool = False,
    retry: Retry = NO_RETRY,
) -> SparkPlan:
    """Compares a listing with what is known, by path, size and time of change.

    Args:
        listing: What the source holds.
        stored: The image table, or None when there is none yet.
        quarantined: The quarantine, or None.
        stamps: Further sizes and times of known contents, rows of `reseen_files.COLUMNS`, or None.
        verify_content: Whether to read every known file and compare its content, for sources whose times lie.
        retry: Which unchanged files in quarantine are read again.
    """
    rule = functools.partial(_decide, root=listing.root, retry=retry)
    plan = _counted(_decided(listing, stored, quarantined, stamps, rule))
    if plan.counts[GONE] and any(plan.ignored[reason] for reason in NOT_LOOKED_INTO):
        unseen = plan.files.where(plan.files[IGNORED].isin(*NOT_LOOKED_INTO)).select(schema.PATH).collect()
        folders = frozenset(row[0] for row in unseen)
        plan = _in_place_of(plan, _mapped(plan.files, functools.partial(without_unseen, folders=folders)))
    statuses = [CHANGED, KNOWN] if verify_content else [CHANGED]
    count = sum(plan.comparable[status] for status in statuses)
    return _in_place_of(plan, _compared_by_content(plan.files, listing, statuses, count)) if count else plan


def _in_place_of(before: SparkPlan, files: DataFrame) -> SparkPlan:
    plan = _counted(files)
    before.release()
    return plan


def _counted(files: DataFrame) -> SparkPlan:
    """Caches files and counts them."""
    from pyspark import StorageLevel
    from pyspark.sql import functions as F

    plan = SparkPlan(frame=files.persist(StorageLevel.MEMORY_AND_DISK))
    groups = files.groupBy(*GROUPED_BY).agg(
        F.count("*").alias(FILES),
        F.sum(schema.SOURCE_LENGTH).alias(BYTES),
        F.max(schema.SOURCE_LENGTH).alias(LARGEST),
        F.min(LABEL_RANK).alias(RANK),
        F.count_if(TOUCHED).alias(TOUCHED),
        F.count(STORED_HASH).alias(_COMPARABLE),
    )
    for row in groups.collect():
        plan.add(row.asDict())
        plan.comparable[row[STATUS]] += row[_COMPARABLE]
    return plan


def _compared_by_content(files: DataFrame, listing: Listing, statuses: Sequence[str], count: int) -> DataFrame:
    """Reads the files of some statuses, at most `count`, whose content is not known yet, and decides again."""
    from pyspark.sql import functions as F

    candidates = files.where(F.col(STATUS).isin(statuses) & F.col(STORED_HASH).isNotNull())
    unread = candidates.where(F.col(schema.CONTENT_HASH).isNull()).select(schema.PATH, schema.SOURCE_LENGTH)
    hashed = content_hashes(listing, unread, count).withColumnRenamed("hash", _READ)
    read = files.join(hashed, schema.PATH, "left").withColumn(_READ, F.coalesce(_READ, schema.CONTENT_HASH))
    return _mapped(read, _decide_after_reading).drop(_READ)


def _decided(
    listing: Listing,
    stored: DataFrame | None,
    quarantined: DataFrame | None,
    stamps: DataFrame | None,
    rule: Callable[[pa.Table], pa.Table],
) -> DataFrame:
    """Brings all that is known of a path into one row, with one shuffle however many sides there are, and decides."""
    from pyspark.sql import functions as F

    if listing.files is None:
        raise ValueError(f"{listing.name} was listed by the driver, which plans it too")
    columns = [name for name in listing.files.columns if name != schema.PATH]
    known = zip(_SIDES[1:], (stored, quarantined, stamps), (STORED, BAD, AGAIN), strict=True)
    sides = [listing.files.select(schema.PATH, F.struct(*columns).alias("listed"))]
    sides += [_side(listing.files, rows, name, names) for name, rows, names in known]
    union = functools.reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), sides)
    paths = union.groupBy(schema.PATH).agg(*[F.max(side).alias(side) for side in _SIDES])
    ddl = ", ".join([*(f"`{field.name}` {field.dataType.simpleString()}" for field in paths.schema[:2]), DECIDED_DDL])
    return _mapped(paths, rule, ddl).select(schema.PATH, "listed.*", *DECIDED)


def _decide(rows: pa.Table, root: str | None, *, retry: Retry) -> pa.Table:
    paths = rows.column(schema.PATH).combine_chunks()
    listed, stored, bad, again = (Side.of_structs(rows.column(name).combine_chunks()) for name in _SIDES)
    decided = decide(paths, listed, stored, bad, again, root, retry=retry)
    for name in decided.column_names:
        rows = rows.append_column(name, decided.column(name))
    return rows.filter(rows.column(COUNTS)).select([schema.PATH, "listed", *DECIDED])


def _decide_after_reading(rows: pa.Table) -> pa.Table:
    return decide_after_reading(rows, rows.column(_READ))


def _side(listed: DataFrame, rows: DataFrame | None, name: str, columns: Sequence[str]) -> DataFrame:
    """What a table knows of each path, as one struct; of no path where there is no such table."""
    from pyspark.sql import functions as F

    if rows is None:
        numbers = {schema.SOURCE_LENGTH: "bigint", schema.SOURCE_MODIFIED: "timestamp"}
        nothing = [F.lit(None).cast(numbers.get(column, "string")).alias(column) for column in columns]
        return listed.limit(0).select(schema.PATH, F.struct(*nothing).alias(name))
    return rows.select(column_in_one_form(schema.PATH).alias(schema.PATH), F.struct(*columns).alias(name))


def _mapped(files: DataFrame, rule: Callable[[pa.Table], pa.Table], ddl: str | None = None) -> DataFrame:
    """Applies a rule to the rows of each Arrow batch; the columns stay unless others are given."""
    return files.mapInArrow(functools.partial(_each_batch, rule), files.schema if ddl is None else ddl)


def _each_batch(rule: Callable[[pa.Table], pa.Table], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        yield from rule(pa.Table.from_batches([batch])).combine_chunks().to_batches()
