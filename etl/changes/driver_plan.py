"""Plans an ingest on the driver, where the table and the source are small enough for one machine to read in no time.

Asking Spark costs seconds however little there is to do. Class folders are listed here too; what else there is, Spark
has listed. Beyond some ten thousand files, and for tables in other places, `spark_plan` does the same.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ...locations import absolute_path, has_scheme
from ..files.class_folders import ListedFile, Wanted, list_top, list_within
from ..files.driver_limits import (
    LISTING_S,
    MOST_FILES_TO_SEND,
    MOST_HASHED_BYTES,
    MOST_HASHED_FILES,
    MOST_PATH_BYTES,
    MOST_ROWS,
    TooMuchError,
)
from ..files.layouts import FOLDER_LAYOUTS
from ..files.walk import local_uri
from ..log.table_columns import TableColumns, columns_of, open_columns
from ..model import schema
from ..quarantine.reseen_files import Stamps
from ..quarantine.table import Quarantine
from ..sources.contents import content_hashes, hash_file
from ..sources.folders import top_as_executors_see_it
from ..sources.listing import IGNORED, LABEL_RANK, Listing, completed
from ..spark.local_frames import local_frame
from ..spark.path_forms import array_in_one_form
from .compare import BadFile, ComparedFile, KnownFiles, Stamp, StoredFile, compare, plainly_known
from .ingest_plan import CHANGED, IN_QUARANTINE, KNOWN, STATUS, STORED_CLASS, STORED_HASH, TOUCHED, WORK, Group, Plan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from ..sources.sources import Source

# Columns of the tables, in the order of the fields of `StoredFile`, `BadFile` and `Stamp`.
_STAMP = (schema.SOURCE_LENGTH, schema.SOURCE_MODIFIED)
_STORED = (schema.PATH, *_STAMP, schema.ANNOTATION_HASH, schema.CONTENT_HASH, schema.LABEL_NAME)
_BAD = (schema.PATH, *_STAMP, schema.ANNOTATION_HASH, "reason")
_STAMPS = (schema.PATH, *_STAMP, schema.CONTENT_HASH)

_ROW_DDL = (
    f"{schema.PATH} STRING, {schema.SOURCE_LENGTH} BIGINT, {schema.SOURCE_MODIFIED} BIGINT, "
    f"{schema.LABEL_NAME} STRING, {LABEL_RANK} INT, {STATUS} STRING, {IN_QUARANTINE} BOOLEAN, {STORED_HASH} STRING, "
    f"{STORED_CLASS} STRING, {TOUCHED} BOOLEAN"
)
_WORK_DDL = f"{schema.PATH} STRING, {IN_QUARANTINE} BOOLEAN, {STORED_CLASS} STRING"
# The fields of `ListedFile`, of rows of `Listing.files`.
_LISTED = (
    schema.PATH,
    schema.SOURCE_LENGTH,
    f"unix_micros({schema.SOURCE_MODIFIED})",
    schema.LABEL_NAME,
    LABEL_RANK,
    IGNORED,
    schema.ANNOTATION_HASH,
    schema.CONTENT_HASH,
)
_Row = TypeVar("_Row", StoredFile, BadFile, Stamp)


class DriverPlan(Plan):
    """A plan whose files are on the driver; the known ones of which there is no more to say are only counted.

    Args:
        spark: The session that gets the files that are to be read.
        rows: The files of which there is more to say.
        known: Number of the others, by the class that the source gives and the class that is stored.
        ignored: Number of things passed over, by reason.
        listed: What Spark has listed, with annotations; None where a folder's class is all that there is.
        classes_of: Classes of the boxes of a file.
    """

    def __init__(
        self,
        spark: SparkSession,
        rows: Sequence[ComparedFile],
        known: Mapping[tuple[str | None, str | None], int],
        ignored: Mapping[str, int],
        listed: DataFrame | None = None,
        classes_of: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        super().__init__()
        self._spark = spark
        self._rows = rows
        self._listed, self._classes_of = listed, classes_of or {}
        self._known, self._ignored = known, ignored
        for (listed, stored), files in known.items():
            self.add(Group(KNOWN, files, listed_class=listed, stored_class=stored))
        for reason, files in ignored.items():
            self.add(Group(None, files, ignored=reason))
        for row in rows:
            size = row.length or 0
            self.add(
                Group(
                    row.status,
                    1,
                    in_quarantine=row.in_quarantine,
                    listed_class=row.label_name,
                    stored_class=row.stored_class,
                    rank=row.label_rank,
                    touched=int(row.touched),
                    work_bytes=size,
                    largest=size,
                )
            )

    @functools.cached_property
    def files(self) -> DataFrame:
        """The files of which there is more to say than that they are known."""
        from pyspark.sql import functions as F

        frame = local_frame(self._spark, self._rows, _ROW_DDL)
        frame = frame.withColumn(schema.SOURCE_MODIFIED, F.timestamp_micros(schema.SOURCE_MODIFIED))
        more = [STATUS, IN_QUARANTINE, STORED_HASH, STORED_CLASS, TOUCHED]
        return completed(frame, more)

    def work_files(self) -> DataFrame:
        """The files that are to be read, as the source lists them, with `stored_class`."""
        from pyspark.sql import functions as F

        if self._listed is None:
            return super().work_files()
        rows = [(row.path, row.in_quarantine, row.stored_class) for row in filter(_is_work, self._rows)]
        return self._listed.join(F.broadcast(local_frame(self._spark, rows, _WORK_DDL)), schema.PATH)

    def box_classes(self) -> list[str]:
        """The classes of the boxes in the files that are to be read, in sorted order."""
        work = filter(_is_work, self._rows)
        return sorted({name for row in work for name in self._classes_of.get(row.path, ())})

    def paths(self, *statuses: str, limit: int | None = None) -> list[str]:
        """Lists the paths of the files of some statuses, at most so many."""
        return [row.path for row in self._rows if row.status in statuses][:limit]

    def batches(self, max_files: int) -> Iterator[Plan]:
        """Yields the plan in parts, those files first that changed longest ago."""
        if self.work <= max_files:
            yield self
            return
        work = sorted(filter(_is_work, self._rows), key=lambda row: (row.modified_us, row.path))
        others = [row for row in self._rows if not _is_work(row)]
        more = self._listed, self._classes_of
        yield DriverPlan(self._spark, [*others, *work[:max_files]], self._known, self._ignored, *more)
        for start in range(max_files, len(work), max_files):
            yield DriverPlan(self._spark, work[start : start + max_files], {}, {}, *more)


class DriverPlanning(NamedTuple):
    """A plan with what it was made of.

    Attributes:
        listing: The source.
        plan: What is to be done.
        columns: The table, to be read for more; None where its place is not known yet.
    """

    listing: Listing
    plan: DriverPlan
    columns: TableColumns | None


def plan_on_driver(spark: SparkSession, location: str, version: int | None, source: Source) -> DriverPlanning | None:
    """Lists and plans an ingest of class folders; None where Spark has to, or says better what is wrong.

    Args:
        spark: The session.
        location: The table.
        version: Its version that the plan is for; None when it is to be created.
        source: Where the images come from.
    """
    if source.is_frame or source.layout not in FOLDER_LAYOUTS:
        return None
    root = absolute_path(str(source.location))
    if has_scheme(root):
        return None
    try:
        sides = _known(spark, location, version)
        listed = _list(spark, os.fsencode(root), Wanted(source.layout))
        listing = Listing(source.name, None, local_uri(os.fsencode(root)))
        return DriverPlanning(listing, _planned(spark, listing, listed, sides), sides.columns)
    except TooMuchError:
        return None


def plan_listing(spark: SparkSession, location: str, version: int | None, listing: Listing) -> DriverPlanning | None:
    """Plans an ingest of what Spark has listed, if that is little; None where Spark has to plan.

    Args:
        spark: The session.
        location: The table.
        version: Its version that the plan is for; None when it is to be created.
        listing: The source, whose files Spark keeps.
    """
    if listing.files is None:
        return None
    try:
        sides = _known(spark, location, version)
        if not listing.is_at_hand and listing.files.count() > MOST_FILES_TO_SEND:
            return None
        rows = listing.files.selectExpr(*_LISTED, "boxes.label_name").collect()
        listed = [ListedFile(*row[:-1]) for row in rows]
        classes_of = {row[0]: row[-1] for row in rows if row[-1]}
        return DriverPlanning(listing, _planned(spark, listing, listed, sides, classes_of), sides.columns)
    except TooMuchError:
        return None


class _Sides(NamedTuple):
    """What the tables know."""

    columns: TableColumns | None
    stored: pa.Table | None
    bad: dict[str, BadFile]
    again: dict[str, Stamp]


def _known(spark: SparkSession, location: str, version: int | None) -> _Sides:
    columns = columns_of(spark, location, exists=version is not None)
    stored = None if version is None else _read(columns, version)
    bad = _by_path(_beside(spark, Quarantine(spark, location), _BAD), BadFile, _BAD)
    again = {} if stored is None else _by_path(_beside(spark, Stamps(spark, location), _STAMPS), Stamp, _STAMPS)
    return _Sides(columns, stored, bad, again)


def _planned(
    spark: SparkSession,
    listing: Listing,
    listed: list[ListedFile],
    sides: _Sides,
    classes_of: Mapping[str, Sequence[str]] | None = None,
) -> DriverPlan:
    stored = sides.stored
    known: Counter[tuple[str | None, str | None]] = Counter()
    if stored is not None and listing.files is None and listing.root is not None:
        listed, stored, known = plainly_known(listed, _below(stored, listing.root), sides.bad)
    elif stored is not None and listing.root is None:
        stored = _named_by(stored, listed)
    contents = {file.path: file.content_hash for file in listed if file.content_hash is not None}
    found = compare(listed, KnownFiles(_by_path(stored, StoredFile, _STORED), sides.bad, sides.again), listing.root)
    if len(found.files) > MOST_FILES_TO_SEND or sum(len(file.path) for file in found.files) > MOST_PATH_BYTES:
        raise TooMuchError
    rows = _compared_by_content(spark, listing, found.files, contents)
    return DriverPlan(spark, rows, found.known + known, found.ignored, listing.files, classes_of)


def _beside(spark: SparkSession, table: Quarantine | Stamps, names: Sequence[str]) -> pa.Table | None:
    return _read(open_columns(spark, table.location, names)) if table.exists() else None


def _list(spark: SparkSession, root: bytes, wanted: Wanted) -> list[ListedFile]:
    top = list_top(root)
    if top.problem is not None:
        raise TooMuchError
    if not spark.sparkContext.master.startswith("local") and top != top_as_executors_see_it(spark, root):
        raise TooMuchError  # a folder of the driver's own, or a mount that it sees otherwise
    top.check(os.fsdecode(root), wanted)
    return list_within(root, top.names, wanted, MOST_ROWS, LISTING_S)


def _read(columns: TableColumns | None, version: int | None = None) -> pa.Table:
    table = None if columns is None else columns.at(version)
    if table is None:
        raise TooMuchError
    index = table.schema.get_field_index(schema.PATH)
    return table.set_column(index, schema.PATH, array_in_one_form(table.column(index)))


def _below(table: pa.Table, root: str) -> pa.Table:
    """Keeps the rows of one folder: those of others are neither listed nor gone."""
    import pyarrow.compute as pc

    return table.filter(pc.starts_with(table.column(schema.PATH), root.rstrip("/") + "/"))


def _named_by(table: pa.Table, listed: Sequence[ListedFile]) -> pa.Table:
    """Keeps the rows of the files of a list that is no folder: of others it says nothing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    paths = pa.array([file.path for file in listed], pa.string())
    return table.filter(pc.is_in(table.column(schema.PATH), value_set=paths))


def _by_path(table: pa.Table | None, make: Callable[..., _Row], names: Sequence[str]) -> dict[str, _Row]:
    """Gives the rows by path, the first of `names`: of several the largest, as Spark's max() of structs has it."""
    if table is None:
        return {}
    paths, *values = (table.column(name).to_pylist() for name in names)
    found: dict[str, _Row] = {}
    for path, row in zip(paths, map(make, *values), strict=True):
        known = found.get(path)
        if known is None or _order(row) > _order(known):
            found[path] = row
    return found


def _order(row: StoredFile | BadFile | Stamp) -> list[tuple[bool, object]]:
    return [(value is not None, value) for value in row]


def _is_work(row: ComparedFile) -> bool:
    return row.status in WORK


def _compared_by_content(
    spark: SparkSession, listing: Listing, rows: list[ComparedFile], contents: Mapping[str, str]
) -> list[ComparedFile]:
    """Reads the changed files: one with the content that is stored is known after all."""
    candidates = [row for row in rows if row.status == CHANGED and row.stored_hash is not None]
    unread = [row for row in candidates if row.path not in contents]
    hashes = {**contents, **_hashes(spark, listing, unread)} if unread else contents

    def after_reading(row: ComparedFile) -> ComparedFile:
        is_same = row.status == CHANGED and row.stored_hash is not None and hashes.get(row.path) == row.stored_hash
        return row._replace(status=KNOWN, touched=True) if is_same else row

    return list(map(after_reading, rows)) if candidates else rows


def _hashes(spark: SparkSession, listing: Listing, rows: Sequence[ComparedFile]) -> dict[str, str | None]:
    is_little = len(rows) <= MOST_HASHED_FILES and sum(row.length or 0 for row in rows) <= MOST_HASHED_BYTES
    if is_little and listing.read_contents is None:
        return {row.path: hash_file(row.path) for row in rows}
    files = [(row.path, row.length) for row in rows]
    frame = local_frame(spark, files, f"{schema.PATH} STRING, {schema.SOURCE_LENGTH} BIGINT")
    return dict(content_hashes(listing, frame, len(rows)).collect())
