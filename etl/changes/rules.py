"""The rules of planning an ingest, over Arrow columns: what is to be done about each path; pure.

Masks are of NumPy, where null counts as false: Arrow's own logic has three values.
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

from ..annotations.record import BOXES_LOST, CLASS_UNKNOWN
from ..model import schema
from ..model.classes import NO_CLASS
from ..quarantine import DELETED, RETRIED_REASONS
from ..sources.source import IGNORED
from .plan import CHANGED, GONE, IN_QUARANTINE, KNOWN, NEW, RESTAMPED, STATUS, STORED_CLASS, STORED_HASH

# What the image table, its quarantine and the stamps of unchanged files know of a path.
STAMP = (schema.SOURCE_LENGTH, schema.SOURCE_MODIFIED)
STORED = (*STAMP, schema.ANNOTATION_HASH, schema.CONTENT_HASH, schema.LABEL_NAME)
BAD = (*STAMP, schema.ANNOTATION_HASH, "reason", schema.CONTENT_HASH)
RESEEN = (*STAMP, schema.CONTENT_HASH)
TABLES = {"stored": STORED, "bad": BAD, "reseen": RESEEN}

_TEXT, _FLAG = "STRING", "BOOLEAN"
# The columns that are decided, with their types in SQL.
DECIDED = {STATUS: _TEXT, IN_QUARANTINE: _FLAG, STORED_HASH: _TEXT, STORED_CLASS: _TEXT, RESTAMPED: _FLAG}
COUNTS = "counts"
_Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class PlanRules:
    """What makes a file known."""

    # Whether every known file is read and its content compared, for sources whose times lie
    verify_content: bool = False
    retry_quarantine: bool = False  # Whether unchanged files in quarantine are read again; deleted ones are not
    drop_bad_boxes: bool = False  # Whether an image is stored without boxes that are bad, and so is read again
    # The only classes that are stored, None for all: a file that is in quarantine because its class was not among them
    # is read again once it is
    classes: frozenset[str] | None = None


@dataclass(frozen=True)
class Facts:
    """What one place knows of each path."""

    here: _Mask  # Whether it knows the path at all
    columns: pa.Table  # Its columns, null where it does not

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        return self.columns.column(name)

    @classmethod
    def of_structs(cls, structs: pa.Array) -> Facts:
        """Takes a column of structs, null where the place does not know the path."""
        columns = {field.name: pc.struct_field(structs, field.name) for field in structs.type}
        return cls(_mask(structs.is_valid()), pa.table(columns))


def decide(
    paths: pa.Array, listed: Facts, stored: Facts, bad: Facts, reseen: Facts, root: str | None, rules: PlanRules
) -> pa.Table:
    """Decides about each path; all facts have one row per path, in the same order."""
    content, label = schema.CONTENT_HASH, schema.LABEL_NAME
    has_annotation = _same(listed[schema.ANNOTATION_HASH], stored[schema.ANNOTATION_HASH])
    as_stored = stored.here & has_annotation & _has_content_of(listed, stored, reseen)
    # A restored version may hold the row of a file that has gone bad, or was deleted, since: the row counts.
    is_deleted = _equal(bad["reason"], DELETED) & ~stored.here
    stays_deleted = is_deleted & _has_content_of(listed, bad, reseen)
    stays_bad = ~stored.here & ~is_deleted & _is_as_bad(listed, bad, rules)

    is_known = stored.here | bad.here
    is_below = _mask(pc.starts_with(paths, (root or "").rstrip("/") + "/")) & bool(root)
    is_gone = ~listed.here & is_known & ~is_deleted & is_below
    is_ignored = listed.here & _mask(listed[IGNORED].is_valid())
    # The first rule that holds counts.
    statuses = [(is_gone, GONE), (as_stored | stays_bad | stays_deleted, KNOWN), (is_known, CHANGED)]
    status = np.select([mask for mask, _ in statuses], [name for _, name in statuses], NEW)

    nothing = pa.scalar(None, pa.string())
    known_hash = pc.if_else(pa.array(stored.here & has_annotation), stored[content], nothing)
    stored_class = pc.if_else(pa.array(_equal(stored[label], "")), nothing, stored[label])
    return pa.table(
        {
            STATUS: pa.array(status, pa.string(), mask=is_ignored),
            IN_QUARANTINE: bad.here & ~stays_bad & ~stays_deleted,
            STORED_HASH: pc.if_else(pa.array(is_deleted), bad[content], known_hash),
            STORED_CLASS: pc.if_else(pa.array(stored.here), pc.fill_null(stored_class, NO_CLASS), nothing),
            RESTAMPED: np.zeros(len(paths), dtype=np.bool_),
            COUNTS: listed.here | is_gone,
        }
    )


def _has_content_of(listed: Facts, other: Facts, reseen: Facts) -> _Mask:
    """Holds if no other content is recorded, and the stamp is the other's or one that was seen on its content."""
    content = schema.CONTENT_HASH
    was_reseen = _has_stamp_of(listed, reseen) & _equal(reseen[content], other[content])
    return ~_differ(listed[content], other[content]) & (_has_stamp_of(listed, other) | was_reseen)


def _is_as_bad(listed: Facts, bad: Facts, rules: PlanRules) -> _Mask:
    """Where a file that could not be stored is unchanged, and is not to be read again."""
    if rules.retry_quarantine:
        return np.zeros(len(bad.here), dtype=np.bool_)
    annotation, reason = schema.ANNOTATION_HASH, bad["reason"]
    is_retried = _mask(pc.is_in(reason, value_set=pa.array(RETRIED_REASONS))) | ~_mask(reason.is_valid())
    is_retried |= _equal(reason, BOXES_LOST) & rules.drop_bad_boxes
    is_retried |= _equal(reason, CLASS_UNKNOWN) & _is_wanted(listed[schema.LABEL_NAME], rules.classes)
    return bad.here & _has_stamp_of(listed, bad) & _same(listed[annotation], bad[annotation]) & ~is_retried


def decide_after_reading(decided: pa.Table, contents: pa.ChunkedArray) -> pa.Table:
    """Decides again about files that were read: a file with the stored content counts as known."""
    status, known_hash = decided.column(STATUS), decided.column(STORED_HASH)
    is_restamped = _equal(status, CHANGED) & _equal(contents, known_hash)
    has_changed = _equal(status, KNOWN) & _differ(contents, known_hash)
    status = pc.if_else(pa.array(is_restamped), KNOWN, pc.if_else(pa.array(has_changed), CHANGED, status))
    # A deleted file, which has a content and no row, is in quarantine rightly as long as it is the same.
    is_deleted = _mask(known_hash.is_valid()) & ~_mask(decided.column(STORED_CLASS).is_valid())
    in_quarantine = np.where(is_deleted, _equal(status, CHANGED), _mask(decided.column(IN_QUARANTINE)))
    columns = {STATUS: status, IN_QUARANTINE: pa.array(in_quarantine), RESTAMPED: pa.array(is_restamped)}
    for name, values in columns.items():
        decided = decided.set_column(decided.schema.get_field_index(name), name, values)
    return decided


def without_unlisted(decided: pa.Table, folders: Collection[str]) -> pa.Table:
    """Leaves out what is called gone and lies below one of some folders, which could not be looked into."""
    if not folders:
        return decided
    gone = np.flatnonzero(_equal(decided.column(STATUS), GONE))
    paths = decided.column(schema.PATH).take(pa.array(gone)).to_pylist()
    unseen = [number for number, path in zip(gone, paths, strict=True) if _is_below_one_of(folders, path)]
    keep = np.ones(decided.num_rows, dtype=np.bool_)
    keep[unseen] = False
    return decided.filter(pa.array(keep))


def _is_below_one_of(folders: Collection[str], path: str) -> bool:
    above = itertools.accumulate(path.split("/")[:-1], "{}/{}".format)
    return any(folder in folders for folder in above)


def _is_wanted(names: pa.ChunkedArray, classes: Collection[str] | None) -> _Mask:
    return _mask(names.is_valid() if classes is None else pc.is_in(names, value_set=pa.array([*classes], pa.string())))


def _has_stamp_of(listed: Facts, other: Facts) -> _Mask:
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
