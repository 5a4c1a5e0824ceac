"""Plans a feed: from a table's version and filters to the files, the rows that count, and the order of the epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import EmptyFeedError, InvalidArgumentError, NotAnImageTableError
from ..etl.snapshot import DataFiles, PartitionColumn, Snapshot
from ..parquet import open_parquet_file
from ..stores import find_missing
from .plan import GROUPS_PER_LANE, FeedPlan, RowFilter, files_missing, lanes_within
from .rowgroups import arrow_type, kept_rows, parse_partition_value
from .sharding import GlobalOrder

# Footers that are read to learn how large row groups are: those of the largest files.
_SAMPLED_FILES = 4
_THREADS = 16
# Where no footer can be had, a row group is taken to be this large.
_ASSUMED_GROUP_BYTES = 128 << 20


def make_plan(
    snapshot: Snapshot,
    filters: Mapping[str, Any],
    *,
    seed: int,
    shuffle: bool,
    lanes: int | None,
    memory_bytes: int,
    storage_options: Mapping[str, str],
    check_files: bool,
) -> FeedPlan:
    """Plans a feed.

    Args:
        snapshot: The table's version.
        filters: For each column by name, the value, or a list of the values, whose rows are kept; None is null.
        seed: Seed of the order of rows.
        shuffle: Whether each epoch has an order of its own.
        lanes: Number of lanes; None takes as many as `memory_bytes` holds.
        memory_bytes: Limit for the row groups that one process holds.
        storage_options: Access to an object store.
        check_files: Whether to look for the data files.

    Raises:
        EmptyFeedError: If no row is left.
        InvalidArgumentError: If a filter names a value that the log rules out, or an argument is outside its range.
        NotAnImageTableError: If a filter names a column that the table lacks.
        VersionFilesMissingError: If data files are gone.
    """
    if memory_bytes < 1:
        raise InvalidArgumentError(f"memory_bytes={memory_bytes}: give the bytes of row groups that a process may hold")
    if not snapshot.files.rows.any():
        raise EmptyFeedError(f"{snapshot.location}@{snapshot.version} holds no rows; there is nothing to feed")
    files, row_filters = _filter_files(snapshot, filters)
    plan = FeedPlan(
        location=snapshot.location,
        version=snapshot.version,
        files=files,
        stored_rows=files.rows,
        schema=snapshot.schema,
        partition_columns=snapshot.partition_columns,
        order=GlobalOrder(files.rows, lanes=1, shuffle=False),
        filters=row_filters,
        storage_options=storage_options,
    )
    if check_files:
        check(plan)
    plan = _count_rows(plan)
    if not plan.files.rows.any():
        raise EmptyFeedError(
            f"{plan.location}@{plan.version} holds no rows with {_say(filters)}; there is nothing to feed"
        )
    group_bytes, table_bytes = _sizes(plan)
    chosen, chunk_bytes = lanes_within(memory_bytes, group_bytes, table_bytes)
    if not shuffle:
        lanes = 1
    if lanes is not None:
        chosen, chunk_bytes = lanes, max(1, memory_bytes // (GROUPS_PER_LANE * max(1, lanes)))
    order = GlobalOrder(plan.files.rows, chosen, seed, shuffle)
    return replace(plan, order=order, chunk_bytes=chunk_bytes, row_group_bytes=group_bytes, table_bytes=table_bytes)


def check(plan: FeedPlan) -> None:
    """Looks for every data file of a plan.

    Raises:
        VersionFilesMissingError: If one is gone; names the version and the first such file.
    """
    places = (plan.file_location(file) for file in range(len(plan.files)))
    missing = find_missing(places, plan.storage_options)
    if missing:
        raise files_missing(plan.location, plan.version, missing)


def require_column(snapshot: Snapshot, column: str, argument: str) -> None:
    """Checks that a table has a column.

    Raises:
        NotAnImageTableError: If not; names the columns that there are.
    """
    if column not in snapshot.schema:
        raise NotAnImageTableError(
            f"{snapshot.location}@{snapshot.version} has no column {column!r} ({argument}={column!r}); "
            f"it has {', '.join(snapshot.schema)}"
        )


def _say(filters: Mapping[str, Any]) -> str:
    return " and ".join(f"{column}={value!r}" for column, value in filters.items())


def _filter_files(snapshot: Snapshot, filters: Mapping[str, Any]) -> tuple[DataFiles, tuple[RowFilter, ...]]:
    """Applies the filters on partition columns; gives the files that are left and the other filters."""
    files, row_filters = snapshot.files, []
    for name, wanted in filters.items():
        require_column(snapshot, name, "filters")
        values = _values_of(wanted)
        if name not in snapshot.partition_columns:
            row_filters.append(RowFilter(name, _typed(snapshot, name, values)))
            continue
        column = files.partitions[name]
        present = [
            None if text is None else parse_partition_value(text, snapshot.schema[name]) for text in column.values
        ]
        codes = [i for i, value in enumerate(present) if value in _typed(snapshot, name, values)]
        if not codes:
            raise InvalidArgumentError(
                f"{snapshot.location}@{snapshot.version} has no rows with {name}={wanted!r}; "
                f"{name} is one of {_listed(snapshot.files.partitions[name], present)}"
            )
        files = files.take(np.flatnonzero(np.isin(column.codes, codes)))
    if not files.rows.any():
        raise EmptyFeedError(f"{snapshot.location}@{snapshot.version} holds no rows with {_say(filters)}")
    return files, tuple(row_filters)


def _listed(column: PartitionColumn, present: Sequence[Any]) -> str:
    shown = sorted(repr(present[code]) for code in set(column.codes.tolist()))
    return ", ".join(shown[:20]) + (f" and {len(shown) - 20} more" if len(shown) > 20 else "")


def _values_of(wanted: Any) -> tuple[Any, ...]:
    if isinstance(wanted, Iterable) and not isinstance(wanted, (str, bytes)):
        return tuple(wanted)
    return (wanted,)


def _typed(snapshot: Snapshot, name: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Checks that the values of a filter are of their column's type."""
    declared = snapshot.schema[name]
    try:
        return tuple(pa.array(values, arrow_type(declared)).to_pylist())
    except (pa.ArrowException, TypeError) as error:
        raise InvalidArgumentError(
            f"filters: {name}={list(values)!r} does not fit the column's type {declared}: {error}"
        ) from error


def _count_rows(plan: FeedPlan) -> FeedPlan:
    """Completes the row counts that the log lacks, and counts the rows that filters inside of files keep."""
    unknown = np.flatnonzero(plan.files.rows < 0) if not plan.filters else np.arange(len(plan.files))
    if not len(unknown):
        return plan
    stored, kept = plan.files.rows.copy(), plan.files.rows.copy()
    counts = _of_files(plan, lambda file: _rows_in(plan, file), unknown)
    stored[unknown], kept[unknown] = [c.stored for c in counts], [c.kept for c in counts]
    files = DataFiles(plan.files.paths, plan.files.sizes, kept, plan.files.partitions)
    with_rows = np.flatnonzero(kept)
    return replace(plan, files=files.take(with_rows), stored_rows=stored[with_rows])


def _open_parquet(plan: FeedPlan, file: int) -> AbstractContextManager[pq.ParquetFile]:
    return open_parquet_file(plan.file_location(file), plan.storage_options, int(plan.files.sizes[file]))


class _Rows(NamedTuple):
    stored: int
    kept: int


def _rows_in(plan: FeedPlan, file: int) -> _Rows:
    with _open_parquet(plan, file) as parquet:
        stored = int(parquet.metadata.num_rows)
        if not plan.filters:
            return _Rows(stored, stored)
        groups = range(parquet.metadata.num_row_groups)
        return _Rows(stored, sum(len(kept_rows(plan, file, parquet, group)) for group in groups))


def _of_files(plan: FeedPlan, work: Callable[[int], Any], files: npt.NDArray[np.int64]) -> list[Any]:
    """Does some work for many files at once."""
    try:
        with ThreadPoolExecutor(min(_THREADS, max(1, len(files)))) as pool:
            return list(pool.map(work, files.tolist()))
    except FileNotFoundError as error:
        raise files_missing(plan.location, plan.version, [str(error)]) from error


def _sizes(plan: FeedPlan) -> tuple[int, int]:
    """Estimates the uncompressed bytes of the largest row group, and of all, from the footers of the largest files."""
    sizes = plan.files.sizes
    sampled = np.argsort(-sizes, kind="stable")[:_SAMPLED_FILES]

    def groups(file: int) -> list[int]:
        with _open_parquet(plan, file) as parquet:
            footer = parquet.metadata
        return [footer.row_group(i).total_byte_size for i in range(footer.num_row_groups)]

    try:
        found = [groups(file) for file in sampled.tolist()]
    except FileNotFoundError:  # planning without data files was asked for
        return min(int(sizes.max()), _ASSUMED_GROUP_BYTES), int(sizes.sum())
    read = sum(sum(of_file) for of_file in found)
    growth = max(1.0, read / max(1, int(sizes[sampled].sum())))
    return max(max(of_file, default=0) for of_file in found), int(sizes.sum() * growth)
