"""The rules of planning an ingest, over Arrow columns: what is to be done about each path. Knows no Spark.

The driver applies them to all paths of a small source at once, Spark's tasks to their share of a large one.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..annotations.record import CLASS_UNKNOWN
from ..model import schema
from ..model.labels import NO_CLASS
from ..quarantine.table import DELETED, RETRIED_REASONS
from ..sources.listing import IGNORED
from .ingest_plan import CHANGED, GONE, IN_QUARANTINE, KNOWN, NEW, STATUS, STORED_CLASS, STORED_HASH, TOUCHED

# What the image table, its quarantine and the stamps of unchanged files know of a path.
STAMP = (schema.SOURCE_LENGTH, schema.SOURCE_MODIFIED)
STORED = (*STAMP, schema.ANNOTATION_HASH, schema.CONTENT_HASH, schema.LABEL_NAME)
BAD = (*STAMP, schema.ANNOTATION_HASH, "reason", schema.CONTENT_HASH)
AGAIN = (*STAMP, schema.CONTENT_HASH)

DECIDED = (STATUS, IN_QUARANTINE, STORED_HASH, STORED_CLASS, TOUCHED)
COUNTS = "counts"
DECIDED_DDL = (
    f"{STATUS} STRING, {IN_QUARANTINE} BOOLEAN, {STORED_HASH} STRING, {STORED_CLASS} STRING, {TOUCHED} BOOLEAN"
)
_Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Retry:
    """Which files in quarantine are read again although they are unchanged; deleted ones are not.

    Attributes:
        all: Whether all are.
        classes: The only classes that are stored, None for all: a file whose class was not among them is read again
            once it is.
    """

    all: bool = False
    classes: frozenset[str] | None = None


NO_RETRY = Retry()


@dataclass(frozen=True)
class Side:
    """What one place knows of each path.

    Attributes:
        here: Whether it knows the path at all.
        columns: Its columns, null where it does not.
    """

    here: _Mask
    columns: pa.Table

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        return self.columns.column(name)

    @classmethod
    def of_structs(cls, structs: pa.Array) -> Side:
        """Takes a column of structs, null where the place does not know the path."""
        columns = {field.name: pc.struct_field(structs, field.name) for field in structs.type}
        return cls(_mask(structs.is_valid()), pa.table(columns))

    @classmethod
    def of_rows(cls, rows: pa.Table, paths: pa.Array) -> Side:
        """Looks paths up in rows that have each path once."""
        place = pc.index_in(paths, value_set=rows.column(schema.PATH).combine_chunks())
        return cls(_mask(place.is_valid()), rows.take(place))


def decide(
    paths: pa.Array,
    listed: Side,
    stored: Side,
    bad: Side,
    again: Side,
    root: str | None,
    *,
    retry: Retry = NO_RETRY,
) -> pa.Table:
    """Decides about each path; the sides have one row per path, in the same order.

    Args:
        paths: The paths.
        listed: What the source holds, with the columns of `Listing.files`.
        stored: Rows of the table, with the columns `STORED`.
        bad: Rows of its quarantine, with the columns `BAD`.
        again: Further stamps of stored or deleted files, with the columns `AGAIN`.
        root: The source folder, below which a known path that is not listed is gone; None for another source.
        retry: Which unchanged files in quarantine are read again.

    Returns:
        The columns `DECIDED` (see `Plan.files`), and `counts`: whether the path is listed or gone at all.
    """
    annotation, content = schema.ANNOTATION_HASH, schema.CONTENT_HASH
    is_seen_again = _has_stamp_of(listed, again)
    same_annotation = _same(listed[annotation], stored[annotation])
    as_stored = stored.here & same_annotation & ~_differ(listed[content], stored[content])
    # What the stamp was seen on is the content that the row holds now.
    as_stored &= _has_stamp_of(listed, stored) | (is_seen_again & _equal(again[content], stored[content]))
    # A restored version may hold the row of a file that has gone bad, or was deleted, since: the row counts.
    is_deleted = _equal(bad["reason"], DELETED) & ~stored.here
    stays_deleted = is_deleted & ~_differ(listed[content], bad[content])
    stays_deleted &= _has_stamp_of(listed, bad) | (is_seen_again & _equal(again[content], bad[content]))
    as_bad = (
        bad.here & ~stored.here & ~is_deleted & _has_stamp_of(listed, bad) & _same(listed[annotation], bad[annotation])
    )
    as_bad &= _mask(bad["reason"].is_valid()) & ~_mask(pc.is_in(bad["reason"], value_set=pa.array(RETRIED_REASONS)))
    as_bad &= ~_equal(bad["reason"], CLASS_UNKNOWN) | ~_is_wanted(listed[schema.LABEL_NAME], retry.classes)
    as_bad &= not retry.all

    is_known = stored.here | bad.here
    is_gone = ~listed.here & is_known & ~is_deleted & (root is not None)
    is_gone &= _mask(pc.starts_with(paths, (root or "").rstrip("/") + "/"))
    is_passed_over = listed.here & _mask(listed[IGNORED].is_valid())
    rules = [(is_gone, GONE), (as_stored | as_bad | stays_deleted, KNOWN), (is_known, CHANGED)]
    status = np.select([mask for mask, _ in rules], [name for _, name in rules], NEW)
    nothing = pa.scalar(None, pa.string())
    known_hash = pc.if_else(pa.array(stored.here & same_annotation), stored[content], nothing)
    label = pc.if_else(pa.array(_equal(stored[schema.LABEL_NAME], "")), nothing, stored[schema.LABEL_NAME])
    return pa.table(
        {
            STATUS: pa.array(status, pa.string(), mask=is_passed_over),
            IN_QUARANTINE: bad.here & ~as_bad & ~stays_deleted,
            STORED_HASH: pc.if_else(pa.array(is_deleted), bad[content], known_hash),
            STORED_CLASS: pc.if_else(pa.array(stored.here), pc.fill_null(label, NO_CLASS), nothing),
            TOUCHED: np.zeros(len(paths), dtype=np.bool_),
            COUNTS: listed.here | is_gone,
        }
    )


def decide_after_reading(decided: pa.Table, contents: pa.ChunkedArray) -> pa.Table:
    """Decides again about files that were read: one with the content that is stored is known after all.

    Args:
        decided: Rows with the columns `DECIDED`.
        contents: Digest of each file, null where it was not read or cannot be.
    """
    status, known_hash = decided.column(STATUS), decided.column(STORED_HASH)
    is_touched = _equal(status, CHANGED) & _equal(contents, known_hash)
    has_changed = _equal(status, KNOWN) & _differ(contents, known_hash)
    status = pc.if_else(pa.array(is_touched), KNOWN, pc.if_else(pa.array(has_changed), CHANGED, status))
    # A deleted file, which has a content and no row, is in quarantine rightly as long as it is the same.
    is_deleted = _mask(known_hash.is_valid()) & ~_mask(decided.column(STORED_CLASS).is_valid())
    in_quarantine = np.where(is_deleted, _equal(status, CHANGED), _mask(decided.column(IN_QUARANTINE)))
    for name, values in ((STATUS, status), (IN_QUARANTINE, [in_quarantine]), (TOUCHED, [is_touched])):
        column = pa.chunked_array(values) if isinstance(values, list) else values
        decided = decided.set_column(decided.schema.get_field_index(name), name, column)
    return decided


def without_unseen(decided: pa.Table, folders: Collection[str]) -> pa.Table:
    """Leaves out what is called gone and lies below one of some folders, which could not be looked into."""
    if not folders:
        return decided
    gone = np.flatnonzero(_equal(decided.column(STATUS), GONE))
    paths = decided.column(schema.PATH).take(pa.array(gone)).to_pylist()
    unseen = [number for number, path in zip(gone, paths, strict=True) if _is_below_one_of(folders, path)]
    keep = np.ones(decided.num_rows, dtype=np.bool_)
    keep[unseen] = False
    return decided.filter(pa.array(keep))


def unique_by_path(rows: pa.Table) -> pa.Table:
    """Keeps one row of each path: of several the largest, column by column, as Spark's max() of structs does."""
    if pc.count_distinct(rows.column(schema.PATH)).as_py() == rows.num_rows:
        return rows
    keys = [(name, "ascending") for name in (schema.PATH, *(n for n in rows.column_names if n != schema.PATH))]
    rows = rows.take(pc.sort_indices(rows, sort_keys=keys, null_placement="at_start"))
    paths = rows.column(schema.PATH).to_numpy()
    return rows.filter(pa.array(np.append(paths[:-1] != paths[1:], True)))


def _is_below_one_of(folders: Collection[str], path: str) -> bool:
    above = itertools.accumulate(path.split("/")[:-1], "{}/{}".format)
    return any(folder in folders for folder in above)


def _is_wanted(names: pa.ChunkedArray, classes: Collection[str] | None) -> _Mask:
    return _mask(names.is_valid() if classes is None else pc.is_in(names, value_set=pa.array([*classes], pa.string())))


def _has_stamp_of(listed: Side, other: Side) -> _Mask:
    one, two = (_same(listed[name], other[name]) for name in STAMP)
    return listed.here & other.here & one & two


def _mask(values: Any) -> _Mask:
    """Makes a mask of booleans; null counts as false."""
    return np.asarray(pc.fill_null(values, False))


def _equal(one: Any, two: Any) -> _Mask:
    """Where both are there and equal."""
    return _mask(pc.equal(one, two))


def _differ(one: Any, two: Any) -> _Mask:
    """Where both are there and differ."""
    return _mask(pc.not_equal(one, two))


def _same(one: pa.ChunkedArray, two: pa.ChunkedArray) -> _Mask:
    """Where both are equal, or both are missing."""
    return _equal(one, two) | (_mask(one.is_null()) & _mask(two.is_null()))
