"""What a version holds by class, and how two versions differ; from the log and the small columns, without a JVM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import NotAnImageTableError
from . import schema
from .data_files import open_parquet
from .labels import labels_of
from .snapshot import Snapshot, open_snapshot

if TYPE_CHECKING:
    import pyarrow.parquet as pq

NO_CLASS = "(no class)"
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
        partitions = {name: values.at(file) for name, values in snapshot.files.partitions.items()}
        with open_parquet(snapshot, file, storage_options) as parquet:
            total.update(count_rows(parquet, column, partitions))
    return in_order(total, snapshot.configuration)


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


def in_order(counts: Mapping[str, int], configuration: Mapping[str, str]) -> dict[str, int]:
    """Puts counts into the order of `class_counts`, with the classes that have a number and no row."""
    numbers = labels_of(configuration)
    others = sorted(name for name, rows in counts.items() if name not in numbers and name != NO_CLASS and rows)
    without = [NO_CLASS] if counts.get(NO_CLASS) else []
    return {name: counts.get(name, 0) for name in (*numbers, *others, *without)}


def diff(
    location: str | Path,
    first: int | str | datetime,
    second: int | str | datetime | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> VersionDiff:
    """Compares two versions; only files that one of them lacks are read, without their images.

    Holds path, content hash and class of the rows in those files in memory.

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
    old, new = (_rows(snapshot, shared, storage_options) for snapshot in (before, after))
    return VersionDiff(
        before.version,
        after.version,
        _by_class(new[path][1] for path in new.keys() - old.keys()),
        _by_class(old[path][1] for path in old.keys() - new.keys()),
        _by_class(new[path][1] for path in new.keys() & old.keys() if new[path] != old[path]),
    )


def _require_diff_columns(snapshot: Snapshot) -> None:
    lacking = [name for name in _DIFF_COLUMNS if name not in snapshot.schema]
    if lacking:
        raise NotAnImageTableError(
            f"{snapshot.location}@{snapshot.version} has no column {lacking[0]!r}, by which rows are compared "
            f"(its columns: {', '.join(snapshot.schema)}); diff compares tables that lakelens has made"
        )


def _rows(
    snapshot: Snapshot, left_out: set[str], storage_options: Mapping[str, str] | None
) -> dict[str, tuple[str | None, str]]:
    """Reads content hash and class by path, of the files that are not in `left_out`."""
    found: dict[str, tuple[str | None, str]] = {}
    for file, path in enumerate(snapshot.files.paths):
        if path in left_out:
            continue
        with open_parquet(snapshot, file, storage_options) as parquet:
            for batch in parquet.iter_batches(_BATCH_ROWS, columns=list(_DIFF_COLUMNS)):
                for row in batch.to_pylist():
                    found[row[schema.PATH]] = (row[schema.CONTENT_HASH], row[schema.LABEL_NAME] or NO_CLASS)
    return found


def _by_class(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))
