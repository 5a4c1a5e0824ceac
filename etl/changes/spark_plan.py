"""Plans an ingest by Spark: for any source and any number of files."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..files.walk import NOT_LOOKED_INTO
from ..model import schema
from ..model.labels import NO_CLASS
from ..quarantine.table import RETRIED_REASONS
from ..sources.contents import content_hashes
from ..sources.listing import IGNORED, LABEL_RANK, Listing
from ..spark.path_forms import column_in_one_form
from .ingest_plan import (
    CHANGED,
    GONE,
    IN_QUARANTINE,
    KNOWN,
    NEW,
    STATUS,
    STORED_CLASS,
    STORED_HASH,
    TOUCHED,
    WORK,
    Group,
    Plan,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

_NUMBER = "number"
_STAMP = (schema.SOURCE_LENGTH, schema.SOURCE_MODIFIED, schema.ANNOTATION_HASH)


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
) -> SparkPlan:
    """Compares a listing with what is known, by path, size and time of change.

    Args:
        listing: What the source holds.
        stored: The image table, or None when there is none yet.
        quarantined: The quarantine, or None.
        stamps: Further sizes and times of stored files, rows of `stamps.COLUMNS`, or None.
        verify_content: Whether to read every known file and compare its content, for sources whose times lie.
    """
    plan = _counted(_classified(listing, stored, quarantined, stamps))
    if plan.counts[GONE] and any(plan.ignored[reason] for reason in NOT_LOOKED_INTO):
        plan = _in_place_of(plan, _without_unseen(plan.files))
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

    plan = SparkPlan(frame=files.persist(StorageLevel.MEMORY_AND_DISK))
    for row in _groups(files):
        plan.add(_group(row))
        plan.comparable[row[STATUS]] += row["comparable"]
    return plan


def _groups(files: DataFrame) -> list[Row]:
    from pyspark.sql import functions as F

    groups = files.groupBy(STATUS, IGNORED, IN_QUARANTINE, schema.LABEL_NAME, STORED_CLASS).agg(
        F.count("*").alias("files"),
        F.sum(schema.SOURCE_LENGTH).alias("bytes"),
        F.max(schema.SOURCE_LENGTH).alias("largest"),
        F.min(LABEL_RANK).alias("rank"),
        F.count_if(TOUCHED).alias(TOUCHED),
        F.count(STORED_HASH).alias("comparable"),
    )
    return list(groups.collect())


def _group(row: Row) -> Group:
    return Group(
        status=row[STATUS],
        files=row["files"],
        ignored=row[IGNORED],
        in_quarantine=bool(row[IN_QUARANTINE]),
        listed_class=row[schema.LABEL_NAME],
        stored_class=row[STORED_CLASS],
        rank=row["rank"],
        touched=row[TOUCHED],
        work_bytes=row["bytes"] or 0,
        largest=row["largest"] or 0,
    )


def _without_unseen(files: DataFrame) -> DataFrame:
    """Leaves out what is called gone and lies below a path that could not be looked into."""
    from pyspark.sql import functions as F

    unseen = files.where(F.col(IGNORED).isin(*NOT_LOOKED_INTO)).select(F.col(schema.PATH).alias("above"))
    slashes = f"length({schema.PATH}) - length(replace({schema.PATH}, '/', ''))"
    above = F.expr(f"transform(sequence(1, {slashes}), n -> substring_index({schema.PATH}, '/', n))")
    gone = files.where(F.col(STATUS) == GONE).select(schema.PATH, F.explode(above).alias("above"))
    return files.join(gone.join(unseen, "above").select(schema.PATH).distinct(), schema.PATH, "left_anti")


def _compared_by_content(files: DataFrame, listing: Listing, statuses: Sequence[str], count: int) -> DataFrame:
    """Reads the files of some statuses, `count` of them: one with the content that is stored is known after all."""
    from pyspark.sql import functions as F

    candidates = files.where(F.col(STATUS).isin(statuses) & F.col(STORED_HASH).isNotNull())
    hashed = content_hashes(listing, candidates.select(schema.PATH, schema.SOURCE_LENGTH), count)
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
        named = f"coalesce(nullif(stored.{schema.LABEL_NAME}, ''), '{NO_CLASS}')"
        stored_class = f"CASE WHEN stored IS NOT NULL THEN {named} END"
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

    files = listing.files
    if files is None:
        raise ValueError(f"{listing.name} was listed by the driver, which plans it too")
    listed = F.struct(*[name for name in files.columns if name != schema.PATH])
    sides = {"listed": files.select(schema.PATH, listed.alias("listed"))}
    path = column_in_one_form(schema.PATH).alias(schema.PATH)
    if stored is not None:
        sides["stored"] = stored.select(path, F.struct(*_STAMP, schema.CONTENT_HASH, schema.LABEL_NAME).alias("stored"))
    if quarantined is not None:
        sides["bad"] = quarantined.select(path, F.struct(*_STAMP, "reason").alias("bad"))
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
