"""A plan whose files are on the driver, in Arrow columns."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ..model import schema
from ..model.labels import class_order
from ..sources.listing import IGNORED, LABEL_RANK, completed
from ..spark.local_frames import local_frame
from .ingest_plan import (
    BYTES,
    FILES,
    GROUPED_BY,
    IN_QUARANTINE,
    LARGEST,
    RANK,
    STATUS,
    STORED_CLASS,
    SUFFIX,
    TOUCHED,
    WORK,
    Plan,
    by_reason,
)
from .rules import (
    DECIDED,
    DECIDED_DDL,
    STAMP,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SUFFIX = re.compile(SUFFIX)

# What a plan keeps of each file, and sends to Spark.
KEPT = (schema.PATH, *STAMP, schema.LABEL_NAME, LABEL_RANK, IGNORED, *DECIDED)
_KEPT_DDL = (
    f"{schema.PATH} STRING, {schema.SOURCE_LENGTH} BIGINT, {schema.SOURCE_MODIFIED} BIGINT, "
    f"{schema.LABEL_NAME} STRING, {LABEL_RANK} INT, {IGNORED} STRING, {DECIDED_DDL}"
)
_WORK = (schema.PATH, IN_QUARANTINE, STORED_CLASS)
_WORK_DDL = f"{schema.PATH} STRING, {IN_QUARANTINE} BOOLEAN, {STORED_CLASS} STRING"


class DriverPlan(Plan):
    """A plan whose files are on the driver; the known ones of which there is no more to say are only counted.

    Args:
        spark: The session that gets the files that are to be read.
        decided: The files of which there is more to say, with the columns `KEPT`.
        counted: The others, as groups for `Plan.add`.
        listed: What Spark has listed, with annotations; None where a folder's class is all that there is.
        classes_of: Classes of the boxes of a file.
        ignored: Number of things passed over, by reason and suffix.
    """

    def __init__(
        self,
        spark: SparkSession,
        decided: pa.Table,
        counted: Sequence[Mapping[str, Any]],
        listed: DataFrame | None = None,
        classes_of: Mapping[str, Sequence[str]] | None = None,
        ignored: Mapping[tuple[str, str], int] | None = None,
    ) -> None:
        super().__init__()
        self._ignored = ignored or {}
        self._spark = spark
        self._decided = decided
        self._listed, self._classes_of = listed, classes_of or {}
        self._counted = counted
        for group in (*counted, *groups_of(decided)):
            self.add(group)

    @functools.cached_property
    def files(self) -> DataFrame:
        """The files of which there is more to say than that they are known."""
        from pyspark.sql import functions as F

        frame = local_frame(self._spark, rows_of(self._decided, KEPT), _KEPT_DDL)
        frame = frame.withColumn(schema.SOURCE_MODIFIED, F.timestamp_micros(schema.SOURCE_MODIFIED))
        return completed(frame, DECIDED)

    def work_files(self) -> DataFrame:
        """The files that are to be read, as the source lists them, with `stored_class`."""
        from pyspark.sql import functions as F

        if self._listed is None:
            return super().work_files()
        rows = rows_of(with_status(self._decided, *WORK), _WORK)
        return self._listed.join(F.broadcast(local_frame(self._spark, rows, _WORK_DDL)), schema.PATH)

    def box_classes(self) -> list[str]:
        """The classes of the boxes in the files that are to be read, in sorted order."""
        return sorted({name for path in self.paths(*WORK) for name in self._classes_of.get(path, ())}, key=class_order)

    def listed_box_classes(self) -> set[str]:
        """The classes of all boxes of the source, also in files that are known."""
        return {name for names in self._classes_of.values() for name in names}

    def ignored_suffixes(self) -> dict[str, dict[str, int]]:
        """Counts what was passed over by reason and suffix."""
        return by_reason((*key, files) for key, files in self._ignored.items())

    def paths(self, *statuses: str, limit: int | None = None) -> list[str]:
        """Lists the paths of the files of some statuses, at most `limit`."""
        paths: list[str] = with_status(self._decided, *statuses).column(schema.PATH).to_pylist()
        return paths[:limit]

    def batches(self, max_files: int) -> Iterator[Plan]:
        """Yields the plan in parts, those files first that changed longest ago."""
        if self.work <= max_files:
            yield self
            return
        work = with_status(self._decided, *WORK)
        work = work.sort_by([(schema.SOURCE_MODIFIED, "ascending"), (schema.PATH, "ascending")])
        is_work = pc.is_in(self._decided.column(STATUS), value_set=pa.array(WORK))
        first = pa.concat_tables([self._decided.filter(pc.invert(is_work)), work.slice(0, max_files)])
        more = self._listed, self._classes_of, self._ignored
        yield DriverPlan(self._spark, first, self._counted, *more)
        for start in range(max_files, work.num_rows, max_files):
            yield DriverPlan(self._spark, work.slice(start, max_files), (), *more[:2])


def groups_of(decided: pa.Table) -> list[dict[str, Any]]:
    """Counts files that are alike, for `Plan.add`."""
    counted = {
        FILES: ([], "count_all"),
        BYTES: (schema.SOURCE_LENGTH, "sum"),
        LARGEST: (schema.SOURCE_LENGTH, "max"),
        RANK: (LABEL_RANK, "min"),
        TOUCHED: (TOUCHED, "sum"),
    }
    groups = decided.group_by(list(GROUPED_BY)).aggregate(list(counted.values()))
    named: list[dict[str, Any]] = groups.rename_columns([*GROUPED_BY, *counted]).to_pylist()
    return named


def count_ignored(listed: pa.Table) -> Counter[tuple[str, str]]:
    """Counts what was passed over of a listing by reason and suffix."""
    passed = listed.filter(listed.column(IGNORED).is_valid())
    suffixes = (_SUFFIX.search(path) for path in passed.column(schema.PATH).to_pylist())
    ends = ["" if found is None else found[1].lower() for found in suffixes]
    return Counter(zip(passed.column(IGNORED).to_pylist(), ends, strict=True))


def with_status(decided: pa.Table, *statuses: str) -> pa.Table:
    """Keeps the files of some statuses."""
    return decided.filter(pc.is_in(decided.column(STATUS), value_set=pa.array(statuses)))


def rows_of(decided: pa.Table, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """Returns some columns as tuples."""
    return list(zip(*(decided.column(name).to_pylist() for name in names), strict=True))
