"""The plan of an ingest: each file of the source compared with the table and its quarantine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..model import schema
from ..model.labels import NO_CLASS, class_order
from ..sources.listing import IGNORED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STATUS = "status"
IN_QUARANTINE = "in_quarantine"
STORED_HASH = "stored_hash"
STORED_CLASS = "stored_class"
TOUCHED = "touched"

NEW = "new"
CHANGED = "changed"
KNOWN = "known"
GONE = "gone"
# Files of these are read.
WORK = (NEW, CHANGED)


# Files that are alike in these are counted together; `Plan.add` takes the counts, which are these.
GROUPED_BY = (STATUS, IGNORED, IN_QUARANTINE, schema.LABEL_NAME, STORED_CLASS)
FILES, BYTES, LARGEST, RANK = "files", "bytes", "largest", "rank"

MOST_SUFFIXES = 20  # that are listed of a reason: numbered files may each have their own one
# The end of a file's name, as RE2, Java and Python read it; names that start with a dot have none.
SUFFIX = r"[^/](\.[^./]{1,20})$"


@dataclass
class Plan(ABC):
    """The files of one ingest, each with what is to be done about it.

    Attributes:
        counts: Number of files by status.
        ignored: Number of things passed over, by reason.
        class_ranks: Classes of the files that are to be read, with the number of their folder or None.
        listed_by_class: Files of the source by class.
        lost_by_class: Stored rows by class whose file is gone, or is of another class now.
        relabelled: Number of files that are known, although the source gives them another class than their rows have,
            by both classes, the stored one first.
        gone_by_class: Stored rows by class whose file is gone.
        changed_by_class: Stored rows by class whose file is to be read again.
        work_by_class: Files that are to be read, by the class that the source gives them.
        mended_known: Number of files that are stored as they are and still in quarantine: an ingest was killed between
            its two commits.
        quarantined_work: Number of files to read that are in quarantine.
        quarantined_gone: Number of files in quarantine that are gone.
        touched: Number of files with the column `touched`.
        work_bytes: Bytes of the files that are to be read.
        largest_bytes: Bytes of the largest of them.
    """

    counts: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    class_ranks: dict[str, int | None] = field(default_factory=dict)
    listed_by_class: Counter[str] = field(default_factory=Counter)
    lost_by_class: Counter[str] = field(default_factory=Counter)
    relabelled: Counter[tuple[str, str]] = field(default_factory=Counter)
    gone_by_class: Counter[str] = field(default_factory=Counter)
    changed_by_class: Counter[str] = field(default_factory=Counter)
    work_by_class: Counter[str] = field(default_factory=Counter)
    mended_known: int = 0
    quarantined_work: int = 0
    quarantined_gone: int = 0
    touched: int = 0
    work_bytes: int = 0
    largest_bytes: int = 0

    @property
    @abstractmethod
    def files(self) -> DataFrame:
        """The listing with the columns `status`, `in_quarantine`, `stored_hash`, `stored_class` and `touched`.

        The status is `new`, `changed` or `known`; null when passed over; `gone` for known paths below the source folder
        that it no longer holds. `touched` is known by its content, although its size or time is new. Files that are
        known, neither touched nor in quarantine, may be left out.
        """

    @abstractmethod
    def batches(self, max_files: int) -> Iterator[Plan]:
        """Yields the same plan in parts of at most `max_files` files to read.

        Each part may be used until the next one is asked for. What is not to be read is in the first part, so that the
        counts of all parts add up to those of the whole.
        """

    def release(self) -> None:
        """Frees what the plan keeps."""
        return

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
        return sorted(
            self.class_ranks,
            key=lambda name: (self.class_ranks[name] is None, self.class_ranks[name] or 0, class_order(name)),
        )

    @property
    def lost_classes(self) -> list[str]:
        """Classes of which the source has lost every file."""
        return sorted(name for name in self.lost_by_class if not self.listed_by_class[name])

    def paths(self, *statuses: str, limit: int | None = None) -> list[str]:
        """Lists the paths of the files of some statuses, at most `limit`."""
        from pyspark.sql import functions as F

        if not any(self.counts[status] for status in statuses):
            return []
        rows = self.files.where(F.col(STATUS).isin(*statuses)).select(schema.PATH)
        return [row[0] for row in (rows if limit is None else rows.limit(limit)).collect()]

    def work_files(self) -> DataFrame:
        """The files that are to be read, as the source lists them, with `stored_class`."""
        from pyspark.sql import functions as F

        work = self.files.where(F.col(STATUS).isin(*WORK))
        return work.drop(STATUS, STORED_HASH, TOUCHED)

    def box_classes(self) -> list[str]:
        """The classes of the boxes in the files that are to be read, in sorted order."""
        return sorted(_box_classes(self.work_files()), key=class_order)

    def listed_box_classes(self) -> set[str]:
        """The classes of all boxes of the source, also in files that are known."""
        return _box_classes(self.files)

    @abstractmethod
    def ignored_suffixes(self) -> dict[str, dict[str, int]]:
        """Counts what was passed over by reason and by what the name ends with, the most frequent first."""

    def touched_files(self) -> DataFrame:
        """Rows of `stamps.COLUMNS` for the files that were read and found unchanged."""
        from pyspark.sql import functions as F

        stamp = [schema.PATH, schema.SOURCE_LENGTH, schema.SOURCE_MODIFIED]
        return self.files.where(TOUCHED).select(*stamp, F.col(STORED_HASH).alias(schema.CONTENT_HASH))

    def wrongly_in_quarantine(self, *, with_gone: bool) -> DataFrame:
        """The paths that are in quarantine and, once the work is done well, do not belong there; or are gone."""
        from pyspark.sql import functions as F

        statuses = (*WORK, KNOWN, GONE) if with_gone else (*WORK, KNOWN)
        return self.files.where(F.col(IN_QUARANTINE) & F.col(STATUS).isin(*statuses)).select(schema.PATH)

    def add(self, group: Mapping[str, Any]) -> None:
        """Counts files that are alike: the values of `GROUPED_BY`, and of these files the counts."""
        status, files, in_quarantine = group[STATUS], group[FILES], group[IN_QUARANTINE]
        if status is None:
            self.ignored[str(group[IGNORED])] += files
            return
        self.counts[status] += files
        listed_class, stored_class = group[schema.LABEL_NAME], group[STORED_CLASS]
        if stored_class not in (None, NO_CLASS) and (status == GONE or listed_class != stored_class):
            self.lost_by_class[stored_class] += files
        if stored_class is not None and status in (GONE, CHANGED):
            (self.gone_by_class if status == GONE else self.changed_by_class)[stored_class] += files
        if status == GONE:
            self.quarantined_gone += files if in_quarantine else 0
            return
        if listed_class is not None:
            self.listed_by_class[listed_class] += files
        if status == KNOWN:
            self.mended_known += files if in_quarantine else 0
            self.touched += group[TOUCHED]
            if listed_class is not None and stored_class not in (None, NO_CLASS, listed_class):
                self.relabelled[stored_class, listed_class] += files
            return
        self.quarantined_work += files if in_quarantine else 0
        self.work_by_class[listed_class or NO_CLASS] += files
        self.work_bytes += group[BYTES] or 0
        self.largest_bytes = max(self.largest_bytes, group[LARGEST] or 0)
        if listed_class is not None:
            ranks = [rank for rank in (self.class_ranks.get(listed_class), group[RANK]) if rank is not None]
            self.class_ranks[listed_class] = min(ranks, default=None)


def _box_classes(files: DataFrame) -> set[str]:
    rows = files.selectExpr("explode(boxes.label_name) AS name").distinct().collect()
    return {row[0] for row in rows if row[0] is not None}


def by_reason(counted: Iterable[tuple[str, str, int]]) -> dict[str, dict[str, int]]:
    """Orders (reason, suffix, number of files) for `Plan.ignored_suffixes`."""
    found: dict[str, dict[str, int]] = {}
    for reason, suffix, files in sorted(counted, key=lambda entry: (entry[0], -entry[2], entry[1])):
        suffixes = found.setdefault(reason, {})
        if len(suffixes) < MOST_SUFFIXES:
            suffixes[suffix] = files
    return found
