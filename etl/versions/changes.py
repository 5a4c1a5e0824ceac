"""What a version holds by class, and how two versions differ row by row; reads small columns, without a JVM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import InvalidArgumentError, NotADeltaTableError, NotAnImageTableError
from ...ledger.ledger import Ledger
from ...ledger.store import read
from ...log.data_files import read_batches, read_columns
from ...log.snapshot import Snapshot, open_snapshot
from ...results import ReadableResult
from ...table import Table, Version
from ..model import schema
from ..model.classes import NO_CLASS, in_order, labels_of


def class_counts(snapshot: Snapshot) -> dict[str, int]:
    """Counts a version's rows by class name, in the order of `in_order`; empty for a table without classes."""
    column = class_column(snapshot.schema)
    if column is None:
        return {}
    total: Counter[str] = Counter()
    for file in range(len(snapshot.files)):
        names = read_columns(snapshot, file, pa.schema([(column, pa.string())])).column(column)
        for entry in names.value_counts().to_pylist():
            total[entry["values"] or NO_CLASS] += entry["counts"]
    return in_order(total, labels_at(snapshot))


def box_counts(snapshot: Snapshot) -> dict[str, int]:
    """Counts a version's boxes by class name, as `class_counts` counts rows; empty for a table without boxes."""
    if schema.ANNOTATIONS not in snapshot.schema:
        return {}
    total: Counter[str] = Counter()
    for file in range(len(snapshot.files)):
        for batch in read_batches(snapshot, file, [schema.ANNOTATIONS]):
            names = batch.column(0).flatten().field(schema.LABEL_NAME)
            total.update({entry["values"] or NO_CLASS: entry["counts"] for entry in names.value_counts().to_pylist()})
    return in_order(total, labels_at(snapshot)) if total else {}


def labels_at(snapshot: Snapshot) -> dict[str, int]:
    """Returns the class numbers of a version by its names, ordered by number; a clone has them in its rows alone."""
    return stated_labels(snapshot.table, snapshot.version, snapshot.configuration) or _labels_in_rows(snapshot)


def stated_labels(table: Table, version: int, configuration: Mapping[str, str]) -> dict[str, int]:
    """Returns the class numbers that the ledger of a table or its properties give, as of a version."""
    try:
        ledger = read(table)
    except (InvalidArgumentError, NotADeltaTableError):  # a place that can have none, or a name in the catalog
        ledger = Ledger()
    return ledger.labels_at(version) if ledger.classes else labels_of(configuration)


def _labels_in_rows(snapshot: Snapshot) -> dict[str, int]:
    if snapshot.schema.get(schema.LABEL_NAME) != "string" or snapshot.schema.get(schema.LABEL) != "integer":
        return {}
    columns = pa.schema([(schema.LABEL_NAME, pa.string()), (schema.LABEL, pa.int32())])
    pairs: Counter[tuple[str, int]] = Counter()
    for file in range(len(snapshot.files)):
        rows = read_columns(snapshot, file, columns)
        pairs.update(zip(*(rows.column(name).to_pylist() for name in columns.names), strict=True))
    return Ledger().settled({pair: rows for pair, rows in pairs.items() if pair[0] and pair[1] is not None})[0].labels


def class_column(columns: Mapping[str, str]) -> str | None:
    """Names the column that holds the classes: names when the table has them, else numbers, else None."""
    return next((name for name in (schema.LABEL_NAME, schema.LABEL) if name in columns), None)


CHANGE = "change"
ADDED, REMOVED = "added", "removed"
# Kinds of change of a row that both versions have, by the column that differs.
_KIND_OF_COLUMN = {schema.CONTENT_HASH: "content", schema.LABEL_NAME: "label", schema.SPLIT: "split"}
KINDS = (ADDED, REMOVED, *_KIND_OF_COLUMN.values())
_REQUIRED_COLUMNS = (schema.PATH, schema.CONTENT_HASH, schema.LABEL_NAME)


@dataclass(frozen=True, repr=False)
class VersionDiff(ReadableResult):
    """How a second version differs from a first, in rows by class name; rows are identified by path."""

    first: int  # Number of the first version
    second: int  # Number of the second version
    added: dict[str, int]  # Rows whose path only the second has
    removed: dict[str, int]  # Rows whose path only the first has, by the first's class
    changed: dict[str, int]  # Rows that both have, with other content or another class, each counted once
    content: dict[str, int] = field(default_factory=dict)  # Rows that both have, with other content
    label: dict[str, int] = field(default_factory=dict)  # Rows that both have, with another class
    split: dict[str, int] = field(default_factory=dict)  # Rows that both have, in another split


def changes(table: Table, first: Version, second: Version = None) -> pa.Table:
    """Lists what differs between two versions; reads data files that one of them lacks, without their images."""
    return _compare(table, first, second)[2]


def diff(table: Table, first: Version, second: Version = None) -> VersionDiff:
    """Counts by class what `changes` lists; takes and raises the same."""
    before, after, found = _compare(table, first, second)
    counts = {kind: _by_class(found.filter(pc.equal(found.column(CHANGE), kind))) for kind in KINDS}
    is_changed = pc.is_in(found.column(CHANGE), value_set=pa.array(["content", "label"]))
    changed = found.filter(is_changed).group_by([schema.PATH, schema.LABEL_NAME]).aggregate([])
    return VersionDiff(before, after, changed=_by_class(changed), **counts)


def _compare(table: Table, first: Version, second: Version) -> tuple[int, int, pa.Table]:
    """Returns the numbers of two versions and the rows of `changes`."""
    old, new = (open_snapshot(table.at(version)) for version in (first, second))
    for snapshot in (old, new):
        _require_columns(snapshot)
    both = set(old.files.paths) & set(new.files.paths)
    shared = {path for path in both if np.array_equal(old.files.deleted_in(path), new.files.deleted_in(path))}
    return old.version, new.version, _differences(_rows(old, shared), _rows(new, shared))


def _require_columns(snapshot: Snapshot) -> None:
    lacking = [name for name in _REQUIRED_COLUMNS if name not in snapshot.schema]
    if lacking:
        raise NotAnImageTableError(
            f"{snapshot.location}@{snapshot.version} has no column {lacking[0]!r}, by which rows are compared "
            f"(its columns: {', '.join(snapshot.schema)}); only tables that lakelens has created can be compared. If "
            "somebody has renamed it, rename it back: ALTER TABLE ... RENAME COLUMN"
        )


def _rows(snapshot: Snapshot, left_out: set[str]) -> pa.Table:
    """Reads the compared columns of the files that are not in `left_out`; an empty text stands for a missing one."""
    # Paths of tens of millions of rows pass the 2 GiB that one array of `string` holds.
    columns = pa.schema([(name, pa.large_string()) for name in (schema.PATH, *_KIND_OF_COLUMN)])
    files = [index for index, path in enumerate(snapshot.files.paths) if path not in left_out]
    tables = [read_columns(snapshot, index, columns) for index in files]
    rows = pa.concat_tables([columns.empty_table(), *tables])
    return pa.table({name: pc.fill_null(rows.column(name), "").combine_chunks() for name in columns.names})


def _differences(old: pa.Table, new: pa.Table) -> pa.Table:
    position = pc.index_in(new.column(schema.PATH), value_set=old.column(schema.PATH))
    in_both = pc.is_valid(position)
    is_removed = pc.invert(pc.is_in(old.column(schema.PATH), value_set=new.column(schema.PATH)))
    parts = [_of_kind(new.filter(pc.invert(in_both)), ADDED), _of_kind(old.filter(is_removed), REMOVED)]
    before, after = old.take(position.drop_null()), new.filter(in_both)
    for column, kind in _KIND_OF_COLUMN.items():
        differs = pc.not_equal(before.column(column), after.column(column))
        parts.append(_of_kind(after.filter(differs), kind))
    return pa.concat_tables(parts).sort_by([(schema.PATH, "ascending"), (CHANGE, "ascending")])


def _of_kind(rows: pa.Table, kind: str) -> pa.Table:
    names = rows.column(schema.LABEL_NAME)
    names = pc.if_else(pc.equal(names, ""), pa.scalar(None, names.type), names)
    values = {schema.PATH: rows.column(schema.PATH), schema.LABEL_NAME: names}
    values[CHANGE] = pa.chunked_array([pa.repeat(kind, rows.num_rows)])
    return pa.table({name: column.cast(pa.string()) for name, column in values.items()})


def _by_class(rows: pa.Table) -> dict[str, int]:
    counts = pc.fill_null(rows.column(schema.LABEL_NAME), NO_CLASS).value_counts().to_pylist()
    return {entry["values"]: entry["counts"] for entry in sorted(counts, key=lambda entry: str(entry["values"]))}
