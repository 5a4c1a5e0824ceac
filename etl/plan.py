"""What an ingest has to do: each file of the source against what the table and its quarantine already know."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from . import schema
from .listing import IGNORED, LABEL_RANK, Listing
from .quality import RETRIED_REASONS
from .worker import hash_local_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

STATUS = "status"
IN_QUARANTINE = "in_quarantine"
STORED_HASH = "stored_hash"
STORED_CLASS = "stored_class"
TOUCHED = "touched"
_HASHED_AT_ONCE = 64
_BATCH = "batch"
_STAMP = (schema.SOURCE_LENGTH, schema.SOURCE_MODIFIED, schema.ANNOTATION_HASH)

NEW = "new"
CHANGED = "changed"
KNOWN = "known"
GONE = "gone"


@dataclass
class Plan:
    """The files of one ingest, each with what is to be done about it.

    Attributes:
        files: The listing with the columns `status` (`new`, `changed`, `known`; null when passed over; `gone` for known
            paths below the source folder that it no longer holds), `in_quarantine` and `touched` (known by its content,
            although its size or time is new); cached until `release`.
        counts: Number of files by status.
        ignored: Number of things passed over, by reason.
        class_ranks: Classes of the files that are to be read, with the number of their folder or None.
        listed_by_class: Files of the source by class.
        lost_by_class: Stored rows by class whose file is gone, or is of another class now.
        mended_known: Number of files that are stored as they are and still in quarantine: an ingest was killed between
            its two commits.
        quarantined_work: Number of files to read that are in quarantine.
        touched: Number of files with the column `touched`.
        work_bytes: Bytes of the files that are to be read.
        largest_bytes: Bytes of the largest of them.
    """

    files: DataFrame
    counts: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    class_ranks: dict[str, int | None] = field(default_factory=dict)
    listed_by_class: Counter[str] = field(default_factory=Counter)
    lost_by_class: Counter[str] = field(default_factory=Counter)
    mended_known: int = 0
    quarantined_work: int = 0
    touched: int = 0
    work_bytes: int = 0
    largest_bytes: int = 0

    @property
    def rows_in(self) -> int:
        """Number of files of the source."""
        return self.counts.total() - self.counts[GONE]

    @property
    def work(self) -> int:
        """Number of files that are to be read."""
        return self.counts[NEW] + self.counts[CHANGED]

    @property
    def class_names(self) -> list[str]:
        """Classes of the files that are to be read: numbered folders by number, then the others by name."""
        return sorted(
            self.class_ranks, key=lambda name: (self.class_ranks[name] is None, self.class_ranks[name] or 0, name)
        )

    @property
    def lost_classes(self) -> list[str]:
        """Classes of which the source has lost every file."""
        return sorted(name for name in self.lost_by_class if not self.listed_by_class[name])

    def work_files(self) -> DataFrame:
        """The files that are to be read, as the source lists them."""
        work = self.files.where(f"{STATUS} IN ('{NEW}', '{CHANGED}')")
        return work.drop(STATUS, STORED_HASH, STORED_CLASS, TOUCHED)

    def touched_files(self) -> DataFrame:
        """Rows of `stamps.COLUMNS` for the files that were read and found unchanged."""
        from pyspark.sql import functions as F

        stamp = [schema.PATH, schema.SOURCE_LENGTH, schema.SOURCE_MODIFIED]
        return self.files.where(TOUCHED).select(*stamp, F.col(STORED_HASH).alias(schema.CONTENT_HASH))

    def release(self) -> None:
        """Lets Spark forget the cached files."""
        self.files.unpersist()

    def batches(self, max_files: int) -> Iterator[Plan]:
        """Yields the same plan in parts of at most `max_files` files to read, those that changed longest ago first.

        What is not to be read is in the first part, so that the counts of all parts add up to those of the whole.
        """
        from pyspark import StorageLevel
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        if self.work <= max_files:
            yield self
            return
        age = Window.orderBy(schema.SOURCE_MODIFIED, schema.PATH)
        number = F.floor((F.row_number().over(age) - 1) / max_files).cast("int")
        numbered = self.work_files().select(schema.PATH, schema.SOURCE_MODIFIED).withColumn(_BATCH, number)
        files = self.files.join(numbered.select(schema.PATH, _BATCH), schema.PATH, "left").na.fill(0, [_BATCH])
        files = files.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            parts = [
                Plan(files.where(F.col(_BATCH) == part).drop(_BATCH)) for part in range(-(-self.work // max_files))
            ]
            for group in _groups(files, _BATCH):
                _count(parts[group[_BATCH]], group)
            yield from parts
        finally:
            files.unpersist()


def make_plan(
    listing: Listing,
    stored: DataFrame | None,
    quarantined: DataFrame | None,
    stamps: DataFrame | None = None,
    *,
    verify_content: bool = False,
) -> Plan:
    """Compares a listing with what is known, by path, size and time of change.

    Args:
        listing: What the source holds.
        stored: The image table, or None when there is none yet.
        quarantined: The quarantine, or None.
        stamps: Further sizes and times of stored files, rows of `stamps.COLUMNS`, or None.
        verify_content: Whether to read every known file and compare its content, for sources whose times lie.
    """
    from pyspark import StorageLevel

    first = _counted(_classified(listing, stored, quarantined, stamps).persist(StorageLevel.MEMORY_AND_DISK))
    statuses = [CHANGED, KNOWN] if verify_content else [CHANGED]
    count = sum(first.counts[status] for status in statuses)
    if not count:
        return first
    compared = _compared_by_content(first.files, listing, statuses, count)
    second = _counted(compared.persist(StorageLevel.MEMORY_AND_DISK))
    first.release()
    return second


def _counted(files: DataFrame) -> Plan:
    plan = Plan(files)
    for group in _groups(files):
        _count(plan, group)
    return plan


def _groups(files: DataFrame, *by: str) -> list[Row]:
    from pyspark.sql import functions as F

    groups = files.groupBy(STATUS, IGNORED, IN_QUARANTINE, schema.LABEL_NAME, STORED_CLASS, *by).agg(
        F.count("*").alias("files"),
        F.sum(schema.SOURCE_LENGTH).alias("bytes"),
        F.max(schema.SOURCE_LENGTH).alias("largest"),
        F.min(LABEL_RANK).alias("rank"),
        F.count_if(TOUCHED).alias(TOUCHED),
    )
    return list(groups.collect())


def _count(plan: Plan, group: Row) -> None:
    status, count = group[STATUS], group["files"]
    if status is None:
        plan.ignored[str(group[IGNORED])] += count
        return
    plan.counts[status] += count
    listed_class, stored_class = group[schema.LABEL_NAME], group[STORED_CLASS]
    if stored_class is not None and (status == GONE or listed_class != stored_class):
        plan.lost_by_class[stored_class] += count
    if status == GONE:
        return
    if listed_class is not None:
        plan.listed_by_class[listed_class] += count
    if status == KNOWN:
        plan.mended_known += count if group[IN_QUARANTINE] else 0
        plan.touched += group[TOUCHED]
        return
    plan.quarantined_work += count if group[IN_QUARANTINE] else 0
    plan.work_bytes += group["bytes"]
    plan.largest_bytes = max(plan.largest_bytes, group["largest"])
    if listed_class is not None:
        ranks = [rank for rank in (plan.class_ranks.get(listed_class), group["rank"]) if rank is not None]
        plan.class_ranks[listed_class] = min(ranks, default=None)


def _compared_by_content(files: DataFrame, listing: Listing, statuses: Sequence[str], count: int) -> DataFrame:
    """Reads the files of some statuses, `count` of them: one with the content that is stored is known after all."""
    from pyspark.sql import functions as F

    candidates = files.where(F.col(STATUS).isin(statuses) & F.col(STORED_HASH).isNotNull())
    if listing.read_contents is None:
        tasks = min(count, 2 * files.sparkSession.sparkContext.defaultParallelism)
        hashed = (
            candidates.select(schema.PATH).repartition(tasks).mapInArrow(hash_local_files, "path STRING, hash STRING")
        )
    else:
        read = listing.read_contents(candidates.select(schema.PATH, schema.SOURCE_LENGTH), _HASHED_AT_ONCE)
        hashed = read.select(schema.PATH, F.sha2("content", 256).alias("hash"))
    touched = F.expr(f"coalesce({STATUS} = '{CHANGED}' AND hash = {STORED_HASH}, false)")
    status = (
        f"CASE WHEN {TOUCHED} THEN '{KNOWN}' "
        f"WHEN {STATUS} = '{KNOWN}' AND hash <> {STORED_HASH} THEN '{CHANGED}' ELSE {STATUS} END"
    )
    compared = files.join(hashed, schema.PATH, "left").withColumn(TOUCHED, touched)
    return compared.withColumn(STATUS, F.expr(status)).drop("hash")


def _classified(
    listing: Listing, stored: DataFrame | None, quarantined: DataFrame | None, stamps: DataFrame | None
) -> DataFrame:
    """Brings everything that is known of a path into one row, with one shuffle however many sides there are."""
    from pyspark.sql import functions as F

    sides = _sides(listing, stored, quarantined, stamps)
    union = functools.reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), sides.values())
    paths = union.groupBy(schema.PATH).agg(*[F.max(side).alias(side) for side in sides])
    tried = ", ".join(f"'{reason}'" for reason in RETRIED_REASONS)
    is_stored = _is_stored(sides)
    is_bad = f"({_has_stamp_of('bad')} AND bad.reason NOT IN ({tried}))" if "bad" in sides else "false"
    if "stored" in sides:  # a restored version may hold the row of a file that has gone bad since: that row has to go
        is_bad = f"({is_bad} AND stored IS NULL)"
    known_sides = [side for side in ("stored", "bad") if side in sides]
    seen = " OR ".join(f"{side} IS NOT NULL" for side in known_sides) or "false"
    status = (
        f"CASE WHEN listed IS NULL THEN '{GONE}' WHEN listed.{IGNORED} IS NOT NULL THEN NULL "
        f"WHEN {is_stored} OR {is_bad} THEN '{KNOWN}' WHEN {seen} THEN '{CHANGED}' ELSE '{NEW}' END"
    )
    # A bad file that is known as bad belongs in quarantine; a stored one, or one that is gone, does not.
    in_quarantine = f"(bad IS NOT NULL AND NOT coalesce({is_bad}, false))" if "bad" in sides else "false"
    below = F.lit(False) if listing.root is None else F.col(schema.PATH).startswith(listing.root.rstrip("/") + "/")
    stored_hash = stored_class = "CAST(NULL AS STRING)"
    if "stored" in sides:
        said = schema.ANNOTATION_HASH
        stored_class = f"stored.{schema.LABEL_NAME}"
        stored_hash = f"CASE WHEN listed.{said} <=> stored.{said} THEN stored.{schema.CONTENT_HASH} END"
    return paths.where(F.col("listed").isNotNull() | (below & F.expr(f"({seen})"))).select(
        schema.PATH,
        "listed.*",
        F.expr(status).alias(STATUS),
        F.expr(in_quarantine).alias(IN_QUARANTINE),
        F.expr(stored_hash).alias(STORED_HASH),
        F.expr(stored_class).alias(STORED_CLASS),
        F.lit(False).alias(TOUCHED),
    )


def _sides(
    listing: Listing, stored: DataFrame | None, quarantined: DataFrame | None, stamps: DataFrame | None
) -> dict[str, DataFrame]:
    """What each place knows of a path, as one struct of its own name."""
    from pyspark.sql import functions as F

    listed = F.struct(*[name for name in listing.files.columns if name != schema.PATH])
    sides = {"listed": listing.files.select(schema.PATH, listed.alias("listed"))}
    if stored is not None:
        sides["stored"] = stored.select(
            schema.PATH, F.struct(*_STAMP, schema.CONTENT_HASH, schema.LABEL_NAME).alias("stored")
        )
    if quarantined is not None:
        sides["bad"] = quarantined.select(schema.PATH, F.struct(*_STAMP, "reason").alias("bad"))
    if stamps is not None and stored is not None:
        again = F.struct(schema.SOURCE_LENGTH, schema.SOURCE_MODIFIED, schema.CONTENT_HASH)
        sides["again"] = stamps.select(schema.PATH, again.alias("again"))
    return sides


def _has_stamp_of(side: str) -> str:
    return f"({side} IS NOT NULL AND {' AND '.join(f'listed.{name} <=> {side}.{name}' for name in _STAMP)})"


def _is_stored(sides: Mapping[str, DataFrame]) -> str:
    """The SQL condition of a file whose row is as it should be."""
    if "stored" not in sides:
        return "false"
    content, said = schema.CONTENT_HASH, schema.ANNOTATION_HASH
    same = _has_stamp_of("stored")
    if "again" in sides:
        # What the stamp was seen on is the content that the row holds now, and nothing else is said of it.
        stamp = " AND ".join(f"listed.{name} = again.{name}" for name in (schema.SOURCE_LENGTH, schema.SOURCE_MODIFIED))
        met_again = f"{stamp} AND again.{content} = stored.{content} AND listed.{said} <=> stored.{said}"
        same = f"({same} OR coalesce({met_again}, false))"
    return f"({same} AND NOT coalesce(listed.{content} <> stored.{content}, false))"
