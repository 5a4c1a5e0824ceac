"""Reads one version of a table into the numbers of a profile, without Spark.

Two passes over the Parquet files: the small columns of every row; then, for near-duplicates, the images, a row group a
thread. Held at a time: one row group per thread, and about 60 bytes for each row of the table.
"""

from __future__ import annotations

import json
import math
import os
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...errors import InvalidArgumentError, NotAnImageTableError
from ..images.recipe import RECIPE_PROPERTY
from ..log.data_files import open_parquet
from ..log.snapshot import Snapshot
from ..model import schema
from ..model.labels import labels_of
from ..versions.classes import class_column
from .boxes import BoxCounts, counts_between, floats_of, histogram_of, holds_boxes
from .data import ClassRows, Histogram, ImageSizes

_NO_SPLIT = "none"
_FIRST_SPLITS = ("train", "validation", "test")
_SMALL_COLUMNS = (
    schema.HEIGHT,
    schema.WIDTH,
    schema.FORMAT,
    schema.ANNOTATIONS,
    schema.CONTENT_HASH,
    schema.SOURCE_LENGTH,
)
_BATCH_ROWS = 16_384
_MAX_SIZES_HELD = 100_000
_COMMON_SIZES = 12
_GRID = 20
_HISTOGRAM_BINS = 40
_HEXADECIMAL = re.compile(r"[0-9a-f]{16}")
# Spreads row numbers over 64 bits, each to a different one.
_ODD = np.uint64(0x9E3779B97F4A7C15)


class RowGroup(NamedTuple):
    """A row group of a version.

    Attributes:
        file: Index of its file in the snapshot.
        group: Its index in that file.
        first_row: Number of its first row in the version.
        rows: Its rows.
    """

    file: int
    group: int
    first_row: int
    rows: int


@dataclass
class Scan:
    """The small columns of a version, as arrays over its rows.

    Attributes:
        snapshot: The version.
        groups: Its row groups, in the order of the rows.
        splits: Names of the splits.
        split_codes: int16 [rows], index into `splits`.
        names: Names of the classes, None for images without one.
        class_codes: int32 [rows], index into `names`.
        contents: uint64 [rows], the start of each content hash.
        sizes: Rows by (width, height).
        sized: Rows whose width and height are known.
        formats: Rows by format.
        source_bytes: float32 [rows] of the source files, NaN where unknown.
        boxes: Accumulated boxes.
        box_counts: Boxes by class name.
    """

    snapshot: Snapshot
    groups: list[RowGroup]
    splits: list[str] = field(default_factory=list)
    split_codes: npt.NDArray[np.int16] = field(default_factory=lambda: np.empty(0, np.int16))
    names: list[str | None] = field(default_factory=list)
    class_codes: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    contents: npt.NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    source_bytes: npt.NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    sized: int = 0
    formats: Counter[str] = field(default_factory=Counter)
    boxes: BoxCounts = field(default_factory=lambda: BoxCounts())

    @property
    def rows(self) -> int:
        """Rows of the version."""
        return len(self.class_codes)

    def find(self, rows: Sequence[int]) -> dict[RowGroup, list[int]]:
        """Finds the row groups of rows; gives the rows' offsets in each."""
        starts = np.array([group.first_row for group in self.groups], dtype=np.int64)
        found: dict[RowGroup, list[int]] = defaultdict(list)
        for row in sorted(rows):
            group = self.groups[int(np.searchsorted(starts, row, side="right")) - 1]
            found[group].append(row - group.first_row)
        return found


def scan_rows(snapshot: Snapshot, storage_options: Mapping[str, str] | None = None) -> Scan:
    """Reads the small columns of every row.

    Raises:
        NotAnImageTableError: If the table has no column `image`.
    """
    if schema.IMAGE not in snapshot.schema:
        there = ", ".join(snapshot.schema)
        raise NotAnImageTableError(f"{snapshot.location} has no column {schema.IMAGE!r} (its columns: {there})")
    class_name = class_column(snapshot.schema)
    wanted = (*_SMALL_COLUMNS, schema.SPLIT, class_name)
    columns = [name for name in wanted if name in snapshot.schema and name not in snapshot.partition_columns]
    scan = Scan(snapshot, [])
    gathered = _Gathered(class_name)
    first_row = 0
    for file in range(len(snapshot.files)):
        partitions = snapshot.files.partition_values(file)
        with open_parquet(snapshot, file, storage_options) as parquet:
            for group in range(parquet.num_row_groups):
                rows = parquet.metadata.row_group(group).num_rows
                scan.groups.append(RowGroup(file, group, first_row, rows))
                first_row += rows
            present = [name for name in columns if name in parquet.schema_arrow.names]
            for batch in parquet.iter_batches(_BATCH_ROWS, columns=present):
                gathered.add(scan, batch, partitions)
    gathered.finish(scan)
    return scan


def class_rows(scan: Scan) -> tuple[ClassRows, ...]:
    """Counts rows by class and split; classes that have a number and no row are there with none."""
    shape = (max(len(scan.names), 1), max(len(scan.splits), 1))
    flat = scan.class_codes.astype(np.int64) * shape[1] + scan.split_codes
    counts = np.bincount(flat, minlength=shape[0] * shape[1]).reshape(shape)
    numbers = labels_of(scan.snapshot.configuration)
    boxes: dict[str, dict[str, int]] = defaultdict(dict)
    for (name, split), count in scan.boxes.by_class.items():
        boxes[name][split] = count
    rows_of = {name: counts[code] for code, name in enumerate(scan.names)}
    in_order = sorted(numbers, key=numbers.__getitem__)
    named = [name for name in (*scan.names, *boxes) if name is not None and name not in numbers]
    order: list[str | None] = [*in_order, *sorted(set(named))]
    if None in rows_of:
        order.append(None)
    empty = np.zeros(shape[1], np.int64)
    return tuple(
        ClassRows(
            name,
            numbers.get(name) if name is not None else None,
            dict(zip(scan.splits, (int(rows) for rows in rows_of.get(name, empty)), strict=False)),
            boxes.get(name, {}) if name is not None else {},
        )
        for name in order
    )


def image_sizes(scan: Scan, modes: Mapping[str, int], stored_bytes: npt.NDArray[np.float32]) -> ImageSizes:
    """Summarises sizes, formats and bytes, as far as the small columns tell them."""
    sizes = scan.sizes or Counter({(0, 0): 0})
    return ImageSizes(
        common=tuple(scan.sizes.most_common(_COMMON_SIZES)),
        distinct=len(scan.sizes),
        known=scan.sized,
        widths=(min(width for width, _ in sizes), max(width for width, _ in sizes)),
        heights=(min(height for _, height in sizes), max(height for _, height in sizes)),
        formats=dict(scan.formats.most_common()),
        modes=dict(Counter(modes).most_common()),
        stored_kilobytes=histogram(stored_bytes / 1000),
        source_kilobytes=histogram(scan.source_bytes / 1000),
    )


def recipe_of(configuration: Mapping[str, str]) -> dict[str, object]:
    """Reads how the images were stored; empty for a table that is not ours."""
    try:
        recipe = json.loads(configuration.get(RECIPE_PROPERTY, "{}"))
    except ValueError:
        return {}
    return recipe if isinstance(recipe, dict) else {}


def for_each_group(scan: Scan, groups: Sequence[RowGroup], work: Any) -> Iterator[Any]:
    """Calls `work(group)` in a few threads, and yields the results in order; few are held at a time."""
    workers = max(1, min(8, os.cpu_count() or 1))
    # Decoding silences warnings, and what several threads do so at a time none of them takes back: the process would
    # never warn again.
    with warnings.catch_warnings(), ThreadPoolExecutor(workers, thread_name_prefix="lakelens-profile") as pool:
        for start in range(0, len(groups), 2 * workers):
            yield from pool.map(work, groups[start : start + 2 * workers])


class _Gathered:
    """Chunks of the arrays of a scan while it is read."""

    def __init__(self, class_name: str | None) -> None:
        self._class_name = class_name
        self._splits: dict[str, int] = {}
        self._names: dict[str | None, int] = {}
        self._split_codes: list[npt.NDArray[np.int16]] = []
        self._class_codes: list[npt.NDArray[np.int32]] = []
        self._contents: list[npt.NDArray[np.uint64]] = []
        self._source_bytes: list[npt.NDArray[np.float32]] = []
        self._rows = 0

    def add(self, scan: Scan, batch: pa.RecordBatch, partitions: Mapping[str, str | None]) -> None:
        """Takes a batch of one file, which has the given partition values."""
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        splits = [text or _NO_SPLIT for text in _texts_of(columns, partitions, schema.SPLIT, len(batch))]
        names = _texts_of(columns, partitions, self._class_name, len(batch))
        self._split_codes.append(_codes(self._splits, splits).astype(np.int16))
        self._class_codes.append(_codes(self._names, names).astype(np.int32))
        contents = _content_starts(columns.get(schema.CONTENT_HASH), self._rows, len(batch))
        self._contents.append(contents)
        self._source_bytes.append(floats_of(columns.get(schema.SOURCE_LENGTH), len(batch)))
        if schema.FORMAT in columns:
            scan.formats.update(name or "unknown" for name in columns[schema.FORMAT].to_pylist())
        if schema.WIDTH in columns and schema.HEIGHT in columns:
            scan.sized += _count_sizes(scan.sizes, columns[schema.WIDTH], columns[schema.HEIGHT])
        if schema.ANNOTATIONS in columns and holds_boxes(columns[schema.ANNOTATIONS].type):
            scan.boxes.add(columns, splits, self._rows, contents)
        self._rows += len(batch)

    def finish(self, scan: Scan) -> None:
        """Joins the chunks; orders splits with train first."""
        order = sorted(self._splits, key=lambda name: (_rank_of_split(name), name))
        scan.splits = order
        translation = np.array([order.index(name) for name in self._splits] or [0], dtype=np.int16)
        scan.split_codes = translation[_joined(self._split_codes, np.int16)]
        scan.names = list(self._names)
        scan.class_codes = _joined(self._class_codes, np.int32)
        scan.contents = _joined(self._contents, np.uint64)
        scan.source_bytes = _joined(self._source_bytes, np.float32)


def _texts_of(
    columns: Mapping[str, pa.Array], partitions: Mapping[str, str | None], name: str | None, rows: int
) -> list[str | None]:
    """Reads a column as text, as `versions.class_counts` does: what is null or empty, or not there, is None."""
    if name is None or (name not in partitions and name not in columns):
        return [None] * rows
    if name in partitions:
        return [partitions[name] or None] * rows
    return [None if value in (None, "") else str(value) for value in columns[name].to_pylist()]


def _codes(known: dict[Any, int], values: Sequence[Any]) -> npt.NDArray[np.int64]:
    return np.array([known.setdefault(value, len(known)) for value in values], dtype=np.int64)


def _content_starts(column: pa.Array | None, first_row: int, rows: int) -> npt.NDArray[np.uint64]:
    """The first 64 bits of each content hash; a row without one counts as a content of its own."""
    starts = (np.arange(first_row, first_row + rows, dtype=np.uint64) + np.uint64(1)) * _ODD
    if column is not None:
        for index, value in enumerate(column.to_pylist()):
            if value is not None and _HEXADECIMAL.match(value):
                starts[index] = int(value[:16], 16)
    return starts


def _count_sizes(sizes: Counter[tuple[int, int]], widths: pa.Array, heights: pa.Array) -> int:
    """Counts the rows of each size; returns how many have one."""
    pairs = Counter(zip(widths.to_pylist(), heights.to_pylist(), strict=True))
    sized = 0
    for (width, height), rows in pairs.items():
        if width is None or height is None:
            continue
        sized += rows
        # Beyond this the sizes are as good as all different; those that are common are known by then.
        if (width, height) in sizes or len(sizes) < _MAX_SIZES_HELD:
            sizes[width, height] += rows
    return sized


def _joined(chunks: Sequence[Any], kind: Any) -> Any:
    return np.concatenate(chunks) if chunks else np.empty(0, kind)


def _rank_of_split(name: str) -> int:
    return _FIRST_SPLITS.index(name) if name in _FIRST_SPLITS else len(_FIRST_SPLITS)


def histogram(values: npt.NDArray[np.float32]) -> Histogram | None:
    """A histogram up to the 99.5th percentile, finer for more values; what is beyond is in the last bin."""
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        return None
    low, high = float(finite.min()), float(np.percentile(finite, 99.5))
    if high <= low:
        high = low + max(1.0, abs(low) * 0.1)
    bins = min(_HISTOGRAM_BINS, max(8, math.isqrt(finite.size) * 2))
    counts = counts_between(np.clip(finite, low, high), bins, (low, high))
    return histogram_of(counts, (low, high))


def check_positive(**values: int) -> None:
    """Checks arguments that are whole numbers of 0 or more.

    Raises:
        InvalidArgumentError: If one is not.
    """
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise InvalidArgumentError(f"{name} = {value!r} must be a whole number, 0 or more")
