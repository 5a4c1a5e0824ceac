"""What a version holds by class, and how two versions differ; from the log and the small columns, without a JVM."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from ...errors import NotAnImageTableError
from ..log.data_files import open_parquet
from ..log.snapshot import Snapshot, open_snapshot
from ..model import schema
from ..model.labels import NO_CLASS, in_order, labels_of

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_BATCH_ROWS = 65_536
_DIFF_COLUMNS = (schema.PATH, schema.CONTENT_HASH, schema.LABEL_NAME)


@dataclass(frozen=True)
class VersionDiff:
    """How a second version differs from a first, in rows by class name; rows are known by path.

    Attributes:
        first: Number of the first version.
        second: Number of the second version.
        added: Rows whose path only the second has.
        removed: Rows whose path only the first has.
        changed: Rows that both have, with other content or another class; by the second's class.
    """

    first: int
    second: int
    added: dict[str, int]
    removed: dict[str, int]
    changed: dict[str, int]


def class_counts(snapshot: Snapshot, storage_options: Mapping[str, str] | None = None) -> dict[str, int]:
    """Counts a version's rows by class name.

    Classes that have a number come first, in its order, with 0 where they have no row; then, by name, those that have
    none, as in a table that lakelens did not make; then `(no class)`. Empty for a table without classes.

    Raises:
        VersionFilesMissingError: If a data file is gone.
    """
    column = class_column(snapshot.schema)
    if column is None:
        return {}
    total: Counter[str] = Counter()
    for file in range(len(snapshot.files)):
        partitions = snapshot.files.partition_values(file)
        with open_parquet(snapshot, file, storage_options) as parquet:
            total.update(count_rows(parquet, column, partitions))
    return in_order(total, labels_of(snapshot.configuration))


def class_column(columns: Mapping[str, str]) -> str | None:
    """Names the column that holds the classes: names when the table has them, else numbers, else None."""
    return next((name for name in (schema.LABEL_NAME, schema.LABEL) if name in columns), None)


def count_rows(parquet: pq.ParquetFile, column: str | None, partitions: Mapping[str, str | None]) -> Counter[str]:
    """Counts the rows of one open data file by class; all are `(no class)` where it has no such column.

    Args:
        parquet: The file.
        column: The column that holds the classes, if any.
        partitions: The file's partition values.
    """
    rows = int(parquet.metadata.num_rows)
    if column is not None and column in partitions:
        return Counter({partitions[column] or NO_CLASS: rows})
    if column not in parquet.schema_arrow.names:
        return Counter({NO_CLASS: rows})
    counts: Counter[str] = Counter()
    for batch in parquet.iter_batches(_BATCH_ROWS, columns=[column]):
        for entry in batch.column(0).value_counts().to_pylist():
            name = entry["values"]
            counts[NO_CLASS if name in (None, "") else str(name)] += entry["counts"]
    return counts


def diff(
    location: str | Path,
    first: int | str | datetime,
    second: int | str | datetime | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> VersionDiff:
    """Compares two versions; only files that one of them lacks are read, without their images.

    Holds about 100 bytes for each row of those files in memory.

    Args:
        location: Path or URI of the table.
        first: Number, time or pin.
        second: The same, or None for the latest.
        storage_options: Access to an object store.

    Raises:
        VersionNotFoundError: If the table has no such version.
        VersionFilesMissingError: If data files that are to be read are gone.
        NotAnImageTableError: If the table has no column to know its rows by.
    """
    before, after = open_snapshot(location, first, storage_options), open_snapshot(location, second, storage_options)
    for snapshot in (before, after):
        _require_diff_columns(snapshot)
    shared = set(before.files.paths) & set(after.files.paths)
    names: dict[str, int] = {}
    old, new = (_rows(snapshot, shared, names, storage_options) for snapshot in (before, after))
    in_old, in_new = _pairs(old, new)
    differ = (old.contents[in_old] != new.contents[in_new]) | (old.classes[in_old] != new.classes[in_new])
    return VersionDiff(
        before.version,
        after.version,
        _by_class(np.delete(new.classes, in_new), names),
        _by_class(np.delete(old.classes, in_old), names),
        _by_class(new.classes[in_new[differ]], names),
    )


def _require_diff_columns(snapshot: Snapshot) -> None:
    lacking = [name for name in _DIFF_COLUMNS if name not in snapshot.schema]
    if lacking:
        raise NotAnImageTableError(
            f"{snapshot.location}@{snapshot.version} has no column {lacking[0]!r}, by which rows are compared "
            f"(its columns: {', '.join(snapshot.schema)}); diff compares tables that lakelens has made"
        )


class _Rows(NamedTuple):
    """Rows of a version, without their texts.

    Attributes:
        paths: uint64 [rows, 2], digests of the paths.
        contents: uint64 [rows], digests of the content hashes.
        classes: int32 [rows], numbers of the class names.
    """

    paths: npt.NDArray[np.uint64]
    contents: npt.NDArray[np.uint64]
    classes: npt.NDArray[np.int32]


def _rows(
    snapshot: Snapshot, left_out: set[str], names: dict[str, int], storage_options: Mapping[str, str] | None
) -> _Rows:
    """Reads the rows of the files that are not in `left_out`; numbers class names in `names`."""
    chunks = [_Rows(np.empty((0, 2), np.uint64), np.empty(0, np.uint64), np.empty(0, np.int32))]
    for file, path in enumerate(snapshot.files.paths):
        if path in left_out:
            continue
        partitions = snapshot.files.partition_values(file)
        with open_parquet(snapshot, file, storage_options) as parquet:
            # A partition's value is in the log alone, and a file may be older than a column.
            present = [name for name in _DIFF_COLUMNS if name in parquet.schema_arrow.names]
            for batch in parquet.iter_batches(_BATCH_ROWS, columns=present):
                paths, contents, classes = (
                    batch.column(name).to_pylist() if name in present else [partitions.get(name)] * len(batch)
                    for name in _DIFF_COLUMNS
                )
                codes = [names.setdefault(name or NO_CLASS, len(names)) for name in classes]
                chunks.append(
                    _Rows(_digests(paths, 16).reshape(-1, 2), _digests(contents, 8), np.array(codes, dtype=np.int32))
                )
    return _Rows(*(np.concatenate(column) for column in zip(*chunks, strict=True)))


def _digests(texts: Iterable[str | None], size: int) -> npt.NDArray[np.uint64]:
    return np.frombuffer(
        b"".join(hashlib.blake2b((text or "").encode(), digest_size=size).digest() for text in texts), dtype=np.uint64
    )


def _pairs(old: _Rows, new: _Rows) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Finds the rows of one path: their positions in `old`, and in the same order in `new`."""
    paths = np.concatenate([old.paths, new.paths])
    is_new = np.arange(len(paths)) >= len(old.paths)
    order = np.lexsort((is_new, paths[:, 1], paths[:, 0]))
    first, second = order[:-1], order[1:]
    same = (paths[first] == paths[second]).all(axis=1) & ~is_new[first] & is_new[second]
    return first[same], second[same] - len(old.paths)


def _by_class(classes: npt.NDArray[np.int32], names: Mapping[str, int]) -> dict[str, int]:
    counts = np.bincount(classes, minlength=len(names))
    return {name: int(counts[number]) for name, number in sorted(names.items()) if counts[number]}
