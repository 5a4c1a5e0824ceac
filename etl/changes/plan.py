"""The plan of an ingest: each file of the source compared with the table and its quarantine."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...spark.port import forget, keep
from ..annotations.record import IMAGE_MISSING, PATH_UNUSABLE
from ..model import schema
from ..model.classes import NO_CLASS, class_order
from ..sources.source import IGNORED, LABEL_RANK, SEEN, has_problem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STATUS = "status"
IN_QUARANTINE = "in_quarantine"
STORED_HASH = "stored_hash"
STORED_CLASS = "stored_class"
RESTAMPED = "restamped"
# Rows of a path beyond the first, which other writers have stored.
DOUBLED = "doubled"

NEW = "new"
CHANGED = "changed"
KNOWN = "known"
GONE = "gone"
# A path of another source, of which the table has several rows.
ELSEWHERE = "elsewhere"
# Files of these are read.
WORK = (NEW, CHANGED)

# Files that are alike in these are counted together; `Plan.add` takes the counts, which are the others.
_GROUPED_BY = (STATUS, IGNORED, IN_QUARANTINE, schema.LABEL_NAME, STORED_CLASS)
_FILES, _BYTES, _LARGEST, _RANK, _COMPARABLE = "files", "bytes", "largest", "rank", "comparable"
_LOST_PATHS, _MISSING = "lost_paths", "missing_images"
# A file is counted in the row without a box's class, and each class of its boxes in one more row.
_BOX_CLASS = "box_class"

# The end of an ignored file's name, with a letter: numbered files may each have another. Hidden files have none.
_SUFFIX, _SUFFIX_FORM = "suffix", r"[^/](\.(?=[^./]*\p{L})[^./]{1,20})$"
_MOST_SUFFIXES = 20  # of a reason
_NUMBER = "number"


@dataclass
class Plan:
    """The files of one ingest, each with what is to be done about it."""

    # The listing with the columns `status`, `in_quarantine`, `stored_hash`, `stored_class` and `restamped`, kept by
    # Spark until `release`. The status is `new`, `changed` or `known`; null for what is ignored; `gone` for known paths
    # below the source folder that it no longer holds. `restamped` files are known by their content, although their size
    # or time is new
    files: DataFrame
    counts: Counter[str] = field(default_factory=Counter)  # Number of files by status
    # Number of files, by status, that differ from their row in the content alone, if at all
    comparable: Counter[str] = field(default_factory=Counter)
    # Number of ignored things, by reason and by what their name ends with in lower case, such as `.txt`
    suffixes: dict[str, Counter[str]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)  # What its tasks see in the source folder
    # Classes of the files that are to be read, with the number of their folder or None
    class_ranks: dict[str, int | None] = field(default_factory=dict)
    listed_by_class: Counter[str] = field(default_factory=Counter)  # Files of the source by class
    # Stored rows by class whose file is gone, or is of another class now
    lost_by_class: Counter[str] = field(default_factory=Counter)
    # Number of files that are known, although the source gives them another class than their rows have, by both
    # classes, the stored one first
    relabelled: Counter[tuple[str, str]] = field(default_factory=Counter)
    gone_by_class: Counter[str] = field(default_factory=Counter)  # All stored rows by class whose file is gone
    # All stored rows by class whose file is to be read again
    changed_by_class: Counter[str] = field(default_factory=Counter)
    # Number of files in quarantine that are to be read, or are stored: an ingest was killed between its two commits
    in_quarantine: int = 0
    gone_in_quarantine: int = 0  # Number of files in quarantine that no longer exist
    restamped: int = 0  # Number of files with the column `restamped`
    # Classes of the boxes of the source's files, by whether these are to be read
    box_classes: dict[bool, set[str]] = field(default_factory=lambda: {True: set(), False: set()})
    doubled: int = 0  # Rows of the table, of whatever source, beyond the first of their path
    unusable_paths: int = 0  # Number of files to which the annotations give no path that can be read
    missing_images: int = 0  # Number of new annotations and lines of lists that name no image of the source
    work_bytes: int = 0  # Bytes of the files that are to be read
    largest_bytes: int = 0  # Bytes of the largest of them

    @classmethod
    def of(cls, files: DataFrame) -> Plan:
        """Has Spark keep files that are decided about, and counts them."""
        from pyspark.sql import functions as F

        plan = cls(keep(files))
        names = F.array_distinct(F.coalesce(F.col("boxes.label_name"), F.array().cast("array<string>")))
        with_file = F.array_union(F.array(F.lit(None).cast("string")), names)
        counted = files.withColumn(_BOX_CLASS, F.explode(with_file))
        suffix = F.when(F.col(STATUS).isNull(), F.lower(F.regexp_extract(schema.PATH, _SUFFIX_FORM, 1))).alias(_SUFFIX)
        groups = counted.groupBy(*_GROUPED_BY, suffix, _BOX_CLASS).agg(
            F.count("*").alias(_FILES),
            F.count_if(has_problem(PATH_UNUSABLE)).alias(_LOST_PATHS),
            F.count_if(has_problem(IMAGE_MISSING)).alias(_MISSING),
            F.sum(schema.SOURCE_LENGTH).alias(_BYTES),
            F.max(schema.SOURCE_LENGTH).alias(_LARGEST),
            F.min(LABEL_RANK).alias(_RANK),
            F.count_if(RESTAMPED).alias(RESTAMPED),
            F.sum(DOUBLED).alias(DOUBLED),
            F.count(STORED_HASH).alias(_COMPARABLE),
        )
        for row in groups.collect():
            plan._add(row.asDict())
        return plan

    def release(self) -> None:
        """Lets Spark forget the files."""
        forget(self.files)

    @property
    def rows_in(self) -> int:
        """Number of files of the source."""
        return self.counts.total() - self.counts[GONE]

    @property
    def work(self) -> int:
        """Number of files that are to be read."""
        return sum(self.counts[status] for status in WORK)

    @property
    def class_names(self) -> list[str]:
        """Classes of the files that are to be read: numbered folders by number, then the others in `class_order`."""
        ranks = self.class_ranks
        return sorted(ranks, key=lambda name: (ranks[name] is None, ranks[name] or 0, class_order(name)))

    @property
    def lost_classes(self) -> list[str]:
        """Classes of which the source has lost every file."""
        return sorted(name for name in self.lost_by_class if not self.listed_by_class[name])

    def paths(self, status: str, limit: int) -> list[str]:
        """Lists the paths of the files of a status, at most `limit`."""
        rows = self.files.where(self.files[STATUS] == status).select(schema.PATH)
        return [row[0] for row in rows.limit(limit).collect()]

    def listed_files(self) -> DataFrame:
        """The files of the source, and annotations without one."""
        return self.files.where(f"{STATUS} IS NOT NULL AND {STATUS} <> '{GONE}'")

    def work_files(self) -> DataFrame:
        """The files that are to be read, as the source lists them, with `stored_class`."""
        work = self.files.where(self.files[STATUS].isin(*WORK))
        return work.drop(STATUS, STORED_HASH, RESTAMPED, DOUBLED)

    @property
    def work_box_classes(self) -> list[str]:
        """The classes of the boxes in the files that are to be read, in sorted order."""
        return sorted(self.box_classes[True], key=class_order)

    @property
    def ignored(self) -> Counter[str]:
        """Number of ignored things, by reason."""
        return Counter({reason: suffixes.total() for reason, suffixes in self.suffixes.items()})

    def ignored_suffixes(self) -> dict[str, dict[str, int]]:
        """Counts what was ignored by reason and by what the name ends with, the most frequent first."""

        def most(suffixes: Counter[str]) -> dict[str, int]:
            return dict(sorted(suffixes.items(), key=lambda each: (-each[1], each[0]))[:_MOST_SUFFIXES])

        return {reason: most(suffixes) for reason, suffixes in sorted(self.suffixes.items())}

    def restamped_files(self) -> DataFrame:
        """Rows of `quarantine.COLUMNS` for the files that were read and found unchanged."""
        from pyspark.sql import functions as F

        stamp = [schema.PATH, schema.SOURCE_LENGTH, schema.SOURCE_MODIFIED]
        return self.files.where(RESTAMPED).select(*stamp, F.col(STORED_HASH).alias(schema.CONTENT_HASH))

    def leaving_quarantine(self, *, with_gone: bool) -> DataFrame:
        """The paths that are in quarantine and, once the work is done well, do not belong there; or are gone."""
        from pyspark.sql import functions as F

        statuses = (*WORK, KNOWN, GONE) if with_gone else (*WORK, KNOWN)
        return self.files.where(F.col(IN_QUARANTINE) & F.col(STATUS).isin(*statuses)).select(schema.PATH)

    def batches(self, max_files: int) -> Iterator[Plan]:
        """Yields the plan in parts of at most `max_files` files to read, each valid until the next one is requested."""
        # By ranges of paths: Spark may compute the files again, after it has lost an executor, and find others than
        # before; but what a part has read is in the range of no other. What is not to be read is in the first part.
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        if self.work <= max_files:
            yield self
            return
        number = F.row_number().over(Window.orderBy(schema.PATH)).alias(_NUMBER)
        numbered = self.work_files().select(schema.PATH, number)
        starts = [row[0] for row in numbered.where(F.col(_NUMBER) % max_files == 1 % max_files).collect()]
        starts.sort(key=str.encode)  # as Spark compares them
        path, is_work = F.col(schema.PATH), F.coalesce(F.col(STATUS).isin(*WORK), F.lit(False))
        for start, end in itertools.zip_longest(starts, starts[1:]):
            wanted = is_work if end is None else is_work & (path < end)
            wanted = ~is_work | wanted if start == starts[0] else wanted & (path >= start)
            part = Plan.of(self.files.where(wanted))
            try:
                yield part
            finally:
                part.release()

    def _add(self, group: Mapping[str, Any]) -> None:
        """Counts files that are alike: the values of `_GROUPED_BY`, and of these files the counts."""
        status, files, in_quarantine = group[STATUS], group[_FILES], group[IN_QUARANTINE]
        if status is None:
            reason = str(group[IGNORED])
            if reason.startswith(SEEN):
                self.seen.add(reason)
            else:
                self.suffixes.setdefault(reason, Counter())[group[_SUFFIX]] += files
            return
        if group[_BOX_CLASS] is not None:
            self.box_classes[status in WORK].add(group[_BOX_CLASS])
            return
        doubled = group[DOUBLED] or 0
        self.doubled += doubled
        if status == ELSEWHERE:
            return
        self.counts[status] += files
        self.comparable[status] += group[_COMPARABLE]
        self.unusable_paths += group[_LOST_PATHS] if status != GONE else 0
        listed_class, stored_class = group[schema.LABEL_NAME], group[STORED_CLASS]
        if stored_class not in (None, NO_CLASS) and (status == GONE or listed_class != stored_class):
            self.lost_by_class[stored_class] += files
        if stored_class is not None and status in (GONE, CHANGED):
            (self.gone_by_class if status == GONE else self.changed_by_class)[stored_class] += files + doubled
        if status == GONE:
            self.gone_in_quarantine += files if in_quarantine else 0
            return
        self.in_quarantine += files if in_quarantine else 0
        if listed_class is not None:
            self.listed_by_class[listed_class] += files
        if status == KNOWN:
            self.restamped += group[RESTAMPED]
            if listed_class is not None and stored_class not in (None, NO_CLASS, listed_class):
                self.relabelled[stored_class, listed_class] += files
            return
        self.missing_images += group[_MISSING]
        self.work_bytes += group[_BYTES] or 0
        self.largest_bytes = max(self.largest_bytes, group[_LARGEST] or 0)
        if listed_class is not None:
            ranks = [rank for rank in (self.class_ranks.get(listed_class), group[_RANK]) if rank is not None]
            self.class_ranks[listed_class] = min(ranks, default=None)
