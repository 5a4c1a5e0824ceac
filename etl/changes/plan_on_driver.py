"""Plans an ingest on the driver, where the table and the source are small enough for one machine to read quickly.

Asking Spark costs seconds however little there is to do. Class folders are listed here too; what else there is, Spark
has listed. Beyond some ten thousand files, and for tables in other places, `spark_plan` does the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...locations import absolute_path, has_scheme
from ...spark.port import is_local
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
from ..files.walk import NOT_LOOKED_INTO, local_uri
from ..log.table_columns import TableColumns, columns_of, open_columns
from ..model import schema
from ..quarantine.reseen_files import Stamps
from ..quarantine.table import Quarantine
from ..sources.contents import content_hashes, hash_file
from ..sources.folders import top_as_executors_see_it
from ..sources.listing import IGNORED, LABEL_RANK, Listing
from ..spark.local_frames import local_frame
from ..spark.path_forms import array_in_one_form
from .driver_plan import KEPT, DriverPlan, count_ignored, groups_of, rows_of, with_status
from .ingest_plan import (
    CHANGED,
    IN_QUARANTINE,
    KNOWN,
    STATUS,
    STORED_HASH,
)
from .rules import (
    AGAIN,
    BAD,
    COUNTS,
    NO_RETRY,
    STAMP,
    STORED,
    Retry,
    Side,
    decide,
    decide_after_reading,
    unique_by_path,
    without_unseen,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..sources.sources import Source

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
_LISTED_SCHEMA = pa.schema(
    [
        (schema.PATH, pa.string()),
        (schema.SOURCE_LENGTH, pa.int64()),
        (schema.SOURCE_MODIFIED, pa.int64()),
        (schema.LABEL_NAME, pa.string()),
        (LABEL_RANK, pa.int32()),
        (IGNORED, pa.string()),
        (schema.ANNOTATION_HASH, pa.string()),
        (schema.CONTENT_HASH, pa.string()),
    ]
)


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


def plan_on_driver(
    spark: SparkSession,
    location: str,
    version: int | None,
    source: Source,
    aliases: Mapping[str, str],
    *,
    retry: Retry = NO_RETRY,
) -> DriverPlanning | None:
    """Lists and plans an ingest of class folders; None where Spark has to, or says better what is wrong.

    Args:
        spark: The session.
        location: The table.
        version: Its version that the plan is for; None when it is to be created.
        source: Where the images come from.
        aliases: Class names by the old names of renamed classes.
        retry: Which unchanged files in quarantine are read again.
    """
    if source.is_frame or source.layout not in FOLDER_LAYOUTS:
        return None
    root = absolute_path(str(source.location))
    if has_scheme(root):
        return None
    try:
        sides = _known(spark, location, version)
        listed = _list(spark, os.fsencode(root), Wanted(source.layout))
        if aliases:
            listed = [file._replace(label_name=aliases.get(file.label_name or "", file.label_name)) for file in listed]
        listing = Listing(source.name, None, local_uri(os.fsencode(root)))
        plan = plan_files(spark, listing, listed_table(listed), sides, retry=retry)
        return DriverPlanning(listing, plan, sides.columns)
    except TooMuchError:
        return None


def plan_listing(
    spark: SparkSession, location: str, version: int | None, listing: Listing, *, retry: Retry = NO_RETRY
) -> DriverPlanning | None:
    """Plans an ingest of what Spark has listed, if that is little; None where Spark has to plan.

    Args:
        spark: The session.
        location: The table.
        version: Its version that the plan is for; None when it is to be created.
        listing: The source, whose files Spark keeps.
        retry: Which unchanged files in quarantine are read again.
    """
    if listing.files is None:
        return None
    try:
        sides = _known(spark, location, version)
        if not listing.is_at_hand and listing.files.count() > MOST_FILES_TO_SEND:
            return None
        rows = listing.files.selectExpr(*_LISTED, "boxes.label_name").collect()
        listed = unique_by_path(listed_table([row[:-1] for row in rows]))
        classes_of = {row[0]: row[-1] for row in rows if row[-1]}
        plan = plan_files(spark, listing, listed, sides, classes_of, retry=retry)
        return DriverPlanning(listing, plan, sides.columns)
    except TooMuchError:
        return None


class Sides(NamedTuple):
    """What the tables know, each path once."""

    columns: TableColumns | None
    stored: pa.Table
    bad: pa.Table
    again: pa.Table


def _known(spark: SparkSession, location: str, version: int | None) -> Sides:
    columns = columns_of(spark, location, exists=version is not None)
    stored = _nothing(STORED) if version is None else _read(columns, STORED, version)
    bad = _beside(spark, Quarantine(spark, location), BAD)
    return Sides(columns, stored, bad, _beside(spark, Stamps(spark, location), AGAIN))


def plan_files(
    spark: SparkSession,
    listing: Listing,
    listed: pa.Table,
    sides: Sides,
    classes_of: Mapping[str, Sequence[str]] | None = None,
    *,
    retry: Retry = NO_RETRY,
) -> DriverPlan:
    """Plans what was listed against what is known.

    Raises:
        TooMuchError: If Spark should do it.
    """
    known = sides.stored, sides.bad, sides.again
    decided = decide_all(listed, *known, listing.root, retry=retry)
    is_shown = pc.or_(pc.not_equal(decided.column(STATUS), KNOWN), decided.column(IN_QUARANTINE))
    shown = decided.filter(is_shown)  # without what is passed over, whose status is null
    path_bytes = pc.sum(pc.binary_length(shown.column(schema.PATH))).as_py() or 0
    if shown.num_rows > MOST_FILES_TO_SEND or path_bytes > MOST_PATH_BYTES:
        raise TooMuchError
    counted = groups_of(decided.filter(pc.invert(pc.fill_null(is_shown, False))))
    shown = _compared_by_content(spark, listing, shown).select(KEPT)
    return DriverPlan(spark, shown, counted, listing.files, classes_of, count_ignored(listed))


def decide_all(
    listed: pa.Table,
    stored: pa.Table,
    bad: pa.Table,
    again: pa.Table,
    root: str | None,
    *,
    retry: Retry = NO_RETRY,
) -> pa.Table:
    """Decides about all files of a source, and about known ones that its folder no longer holds.

    Args:
        listed: What the source holds, with the columns of `listed_table`, each path once.
        stored: Rows of the table, `path` and `STORED`, each path once.
        bad: Rows of its quarantine, `path` and `BAD`.
        again: Rows of its stamps, `path` and `AGAIN`.
        root: The folder's URI, or None.
        retry: Which unchanged files in quarantine are read again.

    Returns:
        One row per path, with the columns of `listed` and `DECIDED`.
    """
    paths = listed.column(schema.PATH)
    if root is not None:
        paths = pa.chunked_array([*paths.chunks, *_not_listed(paths, (stored, bad), root)], pa.string())
    paths = paths.combine_chunks()
    more = len(paths) - listed.num_rows
    rows = pa.concat_tables([listed, _LISTED_SCHEMA.empty_table().take(pa.nulls(more, pa.int64()))])
    seen = Side(np.arange(len(paths)) < listed.num_rows, rows.set_column(0, schema.PATH, paths))
    in_table, in_quarantine, seen_again = (Side.of_rows(side, paths) for side in (stored, bad, again))
    known = in_table, in_quarantine, seen_again
    decided = decide(paths, seen, *known, root, retry=retry)
    for name in seen.columns.column_names[::-1]:
        decided = decided.add_column(0, name, seen[name])
    unseen = listed.filter(pc.is_in(listed.column(IGNORED), value_set=pa.array(NOT_LOOKED_INTO)))
    return without_unseen(decided.filter(decided.column(COUNTS)), set(unseen.column(schema.PATH).to_pylist()))


def _not_listed(listed: pa.ChunkedArray, sides: Iterable[pa.Table], root: str) -> Iterator[pa.Array]:
    """Yields the known paths below a folder that are not listed, each once."""
    for side in sides:
        known = side.column(schema.PATH)
        known = known.filter(pc.starts_with(known, root.rstrip("/") + "/"))
        others = known.filter(pc.invert(pc.is_in(known, value_set=listed)))
        yield from others.chunks
        listed = pa.chunked_array([*listed.chunks, *others.chunks], pa.string())


def listed_table(files: Sequence[Sequence[Any]]) -> pa.Table:
    """Returns values in the order of `ListedFile` as columns."""
    arrays = [pa.array([file[place] for file in files], field.type) for place, field in enumerate(_LISTED_SCHEMA)]
    return pa.table(arrays, _LISTED_SCHEMA)


def _beside(spark: SparkSession, table: Quarantine | Stamps, names: Sequence[str]) -> pa.Table:
    if not table.exists():
        return _nothing(names)
    return _read(open_columns(spark, table.location, (schema.PATH, *names)), names)


def _list(spark: SparkSession, root: bytes, wanted: Wanted) -> list[ListedFile]:
    top = list_top(root)
    if top.problem is not None:
        raise TooMuchError
    if not is_local(spark) and top != top_as_executors_see_it(spark, root):
        raise TooMuchError  # a folder of the driver's own, or a mount that it sees otherwise
    top.check(os.fsdecode(root), wanted)
    return list_within(root, top.names, wanted, MOST_ROWS, LISTING_S)


def _read(columns: TableColumns | None, names: Sequence[str], version: int | None = None) -> pa.Table:
    table = None if columns is None else columns.at(version)
    if table is None:
        raise TooMuchError
    index = table.schema.get_field_index(schema.PATH)
    table = table.set_column(index, schema.PATH, array_in_one_form(table.column(index)))
    return unique_by_path(table.select([schema.PATH, *names]))


def _nothing(names: Sequence[str]) -> pa.Table:
    kinds = {name: pa.int64() if name in STAMP else pa.string() for name in (schema.PATH, *names)}
    return pa.schema(list(kinds.items())).empty_table()


def _compared_by_content(spark: SparkSession, listing: Listing, decided: pa.Table) -> pa.Table:
    """Reads the changed files whose content is not known yet, and decides again."""
    changed = with_status(decided, CHANGED)
    candidates = changed.filter(changed.column(STORED_HASH).is_valid())
    if not candidates.num_rows:
        return decided
    hashes: dict[str, str | None] = dict(rows_of(candidates, (schema.PATH, schema.CONTENT_HASH)))
    unread = candidates.filter(candidates.column(schema.CONTENT_HASH).is_null())
    if unread.num_rows:
        hashes |= _hashes(spark, listing, rows_of(unread, (schema.PATH, schema.SOURCE_LENGTH)))
    contents = [hashes.get(path) for path in decided.column(schema.PATH).to_pylist()]
    return decide_after_reading(decided, pa.chunked_array([pa.array(contents, pa.string())]))


def _hashes(spark: SparkSession, listing: Listing, files: list[tuple[str, int]]) -> dict[str, str | None]:
    is_little = len(files) <= MOST_HASHED_FILES and sum(length or 0 for _, length in files) <= MOST_HASHED_BYTES
    if is_little and listing.read_contents is None:
        return {path: hash_file(path) for path, _ in files}
    frame = local_frame(spark, files, f"{schema.PATH} STRING, {schema.SOURCE_LENGTH} BIGINT")
    return dict(content_hashes(listing, frame, len(files)).collect())
