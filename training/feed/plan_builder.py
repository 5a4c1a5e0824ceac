"""Plans a feed: from a table's version and filters to the files, the rows that count, and the order of the epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...errors import EmptyFeedError, InvalidArgumentError, NotAnImageTableError
from ...log.data_files import open_stored, require_files
from ...log.delta_types import arrow_type, parse_partition_value, type_name
from ...log.snapshot import DataFiles, PartitionColumn, Snapshot
from ...options import whole_number
from ...results import some_of
from ...stores.watched import STALL_TIMEOUT_S, watched_each
from .plan.epoch_order import GlobalOrder
from .plan.feed_plan import GROUPS_PER_LANE, FeedColumns, FeedPlan, RowFilter, lanes_within, naming_file
from .reading import kept_rows, matches

Result = TypeVar("Result")

# Footers that are read to learn how large row groups are: those of the largest files.
_SAMPLED_FILES = 4


def make_plan(
    snapshot: Snapshot,
    filters: Mapping[str, Any],
    columns: FeedColumns,
    *,
    seed: int,
    shuffle: bool,
    lanes: int | None,
    memory_bytes: int,
    timeout_s: float,
) -> FeedPlan:
    """Plans a feed."""
    memory_bytes = whole_number("memory_bytes", memory_bytes, 1)
    if not snapshot.files.rows.any():
        raise EmptyFeedError(f"{snapshot.location}@{snapshot.version} holds no rows; there is nothing to feed")
    files, row_filters = _filter_files(snapshot, filters)
    plan = FeedPlan(
        snapshot=replace(snapshot, files=files),
        stored_rows=_stored_rows(files),
        order=GlobalOrder(files.rows, lanes=1, shuffle=False),
        columns=columns,
        filters=row_filters,
    )
    require_files(plan.snapshot, timeout_s)
    plan = _count_rows(plan, timeout_s)
    if not plan.files.rows.any():
        raise EmptyFeedError(f"{plan.name} holds no rows with {_described(filters)}; there is nothing to feed")
    row_group_bytes, row_bytes, table_bytes = _sizes(plan, timeout_s)
    chosen, chunk_bytes = lanes_within(memory_bytes, row_group_bytes, table_bytes, row_bytes)
    if not shuffle:
        lanes = 1
    if lanes is not None:
        chosen, chunk_bytes = lanes, max(1, memory_bytes // (GROUPS_PER_LANE * max(1, lanes)))
    order = GlobalOrder(plan.files.rows, chosen, seed, shuffle)
    return replace(
        plan,
        order=order,
        chunk_bytes=chunk_bytes,
        row_group_bytes=row_group_bytes,
        row_bytes=row_bytes,
        table_bytes=table_bytes,
    )


def require_column(snapshot: Snapshot, column: str, argument: str) -> None:
    """Checks that a table has a column."""
    if column not in snapshot.schema:
        raise NotAnImageTableError(
            f"{snapshot.location}@{snapshot.version} has no column {column!r} ({argument}={column!r}); "
            f"it has {', '.join(snapshot.schema)}"
        )


def require_images(name: str, columns: Mapping[str, str], column: str) -> None:
    """Checks that a column holds image files, or pixels, as bytes."""
    kind = type_name(columns[column])
    if kind == "binary":
        return
    way = "Name the binary column that holds them as image_column"
    if kind == "string":
        way = (
            "If these are paths, store the files that they name: ImageTable(spark, table).ingest(frame) takes a "
            "DataFrame with a column path"
        )
    elif kind.startswith("struct<origin:"):
        way = (
            "These are rows of Spark's image source: store the files that they name, as ImageTable(spark, "
            "table).ingest(frame) does with such a DataFrame"
        )
    raise NotAnImageTableError(f"{name}: column {column!r} is {kind}, and images are binary. {way}")


def _described(filters: Mapping[str, Any]) -> str:
    return " and ".join(f"{column}={value!r}" for column, value in filters.items())


def _filter_files(snapshot: Snapshot, filters: Mapping[str, Any]) -> tuple[DataFiles, tuple[RowFilter, ...]]:
    """Applies the filters on partition columns; gives the remaining files and the other filters."""
    files, row_filters = snapshot.files, []
    for name, wanted in filters.items():
        require_column(snapshot, name, "filters")
        row_filter = RowFilter(name, _typed(snapshot, name, _values_of(wanted)))
        if name not in snapshot.partition_columns:
            row_filters.append(row_filter)
            continue
        column, declared = files.partitions[name], snapshot.schema[name]
        present = [None if text is None else parse_partition_value(text, declared) for text in column.values]
        codes = np.flatnonzero(matches(pa.array(present, arrow_type(declared)), row_filter, declared))
        if not len(codes):
            raise InvalidArgumentError(
                f"{snapshot.location}@{snapshot.version} has no rows with {name}={wanted!r}; "
                f"{name} is one of {_listed(snapshot.files.partitions[name], present)}"
            )
        files = files.take(np.flatnonzero(np.isin(column.codes, codes)))
    if not files.rows.any():
        raise EmptyFeedError(f"{snapshot.location}@{snapshot.version} holds no rows with {_described(filters)}")
    return files, tuple(row_filters)


def _listed(column: PartitionColumn, present: Sequence[Any]) -> str:
    shown = sorted(repr(present[code]) for code in set(column.codes.tolist()))
    return some_of(shown, 20)


def _values_of(wanted: Any) -> tuple[Any, ...]:
    if isinstance(wanted, Iterable) and not isinstance(wanted, (str, bytes)):
        return tuple(wanted)
    return (wanted,)


def _typed(snapshot: Snapshot, name: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Checks that the values of a filter are of their column's type."""
    declared = snapshot.schema[name]
    if declared.startswith("{") and any(value is not None for value in values):
        raise InvalidArgumentError(
            f"filters: {name}={list(values)!r}: column {name!r} is {type_name(declared)}, which is compared with null "
            "(None) only"
        )
    try:
        return tuple(pa.array(values, arrow_type(declared)).to_pylist())
    except (pa.ArrowException, TypeError) as error:
        raise InvalidArgumentError(
            f"filters: {name}={list(values)!r} does not fit the column's type {declared}: {error}"
        ) from error


def _count_rows(plan: FeedPlan, timeout_s: float) -> FeedPlan:
    """Completes the row counts that the log lacks, and counts the rows that filters inside of files keep."""
    unknown = np.flatnonzero(plan.files.rows < 0) if not plan.filters else np.arange(len(plan.files))
    if not len(unknown):
        return plan
    stored, kept = plan.files.rows.copy(), plan.files.rows.copy()
    counts = list(of_files(plan, lambda file: _rows_in(plan, file), unknown, timeout_s))
    stored[unknown], kept[unknown] = zip(*counts, strict=True)
    with_rows = np.flatnonzero(kept)
    files = replace(plan.files, rows=kept).take(with_rows)
    return replace(plan, snapshot=replace(plan.snapshot, files=files), stored_rows=stored[with_rows])


def _stored_rows(files: DataFiles) -> npt.NDArray[np.int64]:
    """Counts the rows of each file with the deleted ones: int64 [files], -1 where the log does not tell."""
    deleted = np.array([len(files.deleted_rows(file)) for file in range(len(files))], dtype=np.int64)
    return np.where(files.rows < 0, files.rows, files.rows + deleted)


def _rows_in(plan: FeedPlan, file: int) -> tuple[int, int]:
    """Counts the rows of a file, and those of them that are not deleted and that the filters keep."""
    with open_stored(plan.snapshot, file) as parquet:
        stored = int(parquet.metadata.num_rows)
        if not plan.filters:
            return stored, stored - len(plan.files.deleted_rows(file))
        return stored, sum(map(len, kept_rows(plan, file, parquet)))


def of_files(
    plan: FeedPlan, work: Callable[[int], Result], files: npt.NDArray[np.int64], timeout_s: float = STALL_TIMEOUT_S
) -> Iterator[Result]:
    """Does some work for many files of a plan, several at once; gives the results in the order of the files."""

    def read(file: int) -> Result:
        with naming_file(plan, file):
            return work(file)

    def named(file: int) -> str:
        return f"{plan.name}: {plan.file_location(file)}"

    return watched_each(read, files.tolist(), named, timeout_s)


def _sizes(plan: FeedPlan, timeout_s: float) -> tuple[int, int, int]:
    """Estimates uncompressed bytes of the largest row group, a row and the table from the largest files' footers."""
    sizes = plan.files.sizes
    sampled = np.argsort(-sizes, kind="stable")[:_SAMPLED_FILES]

    def groups(file: int) -> list[tuple[int, int]]:
        with open_stored(plan.snapshot, file) as parquet:
            footer = parquet.metadata
        found = [footer.row_group(i) for i in range(footer.num_row_groups)]
        return [(group.total_byte_size, group.num_rows) for group in found if group.num_rows]

    seen = [group for of_file in of_files(plan, groups, sampled, timeout_s) for group in of_file]
    growth = max(1.0, sum(size for size, _ in seen) / max(1, int(sizes[sampled].sum())))
    return (
        max((size for size, _ in seen), default=0),
        max((-(-size // rows) for size, rows in seen), default=0),
        int(sizes.sum() * growth),
    )
