"""One rank's batches where the images are decoded already: the order of `BatchReader`, computed for a whole epoch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...etl.images.stored_image import StoredImage
from ...stores.parquet import parquet_of
from .decoded_cache import DecodedImages
from .plan.epoch_order import IntArray
from .plan.feed_plan import FeedPlan
from .plan_builder import of_files
from .reading.delta_types import arrow_type
from .reading.row_groups import FileLayout, complete, open_file, stored_columns
from .shard import Shard


@dataclass(frozen=True)
class StoredColumns:
    """Columns of all rows of a feed, in stored order.

    Attributes:
        table: The columns.
        layouts: The row groups of each file.
        origins: int64 [rows, 2], file and row of the file.
    """

    table: pa.Table
    layouts: Sequence[FileLayout]
    origins: npt.NDArray[np.int64]

    @classmethod
    def read(cls, plan: FeedPlan, columns: Sequence[str], timeout_s: float) -> StoredColumns:
        """Reads small columns of all files, several files at once.

        Raises:
            VersionFilesMissingError: If a file is gone.
            FeedError: If a file cannot be read, or the store does not answer.
        """
        files = np.arange(len(plan.files), dtype=np.int64)
        parts = list(of_files(plan, lambda file: _read_file(plan, file, columns), files, timeout_s))
        return cls(
            pa.concat_tables([table for table, _, _ in parts]),
            [layout for _, layout, _ in parts],
            np.concatenate([origins for _, _, origins in parts]),
        )

    @cached_property
    def values(self) -> dict[str, list[Any]]:
        """The columns as Python values."""
        return {name: self.table.column(name).to_pylist() for name in self.table.column_names}

    def sequence(self, plan: FeedPlan, epoch: int) -> IntArray:
        """Lays out an epoch: int64 [rows], for each global row its number in stored order."""
        order, counts = plan.order, [layout.rows for layout in self.layouts]
        firsts = np.cumsum([0, *(sum(rows) for rows in counts)])
        read = [np.empty(0, dtype=np.int64)]
        for file in order.files(epoch).tolist():
            starts, chunks = firsts[file] + np.cumsum([0, *counts[file]]), self.layouts[file].chunks
            for found in order.row_group_slices(epoch, file, counts[file], 0, sum(counts[file]), chunks):
                read.append(starts[found.row_group] + found.rows)
        in_files = np.concatenate(read)
        laid_out = np.empty(order.rows, dtype=np.int64)
        for lane in range(min(order.lanes, order.rows)):
            first = order.lane_start(lane)
            laid_out[lane :: order.lanes] = in_files[first : first + order.lane_rows(lane)]
        return laid_out


def _read_file(plan: FeedPlan, file: int, columns: Sequence[str]) -> tuple[pa.Table, FileLayout, npt.NDArray[np.int64]]:
    layout = FileLayout.of(plan, file)
    with open_file(plan, file) as source:
        stored = list(stored_columns(plan, columns, layout.footer).values())
        read = parquet_of(source, layout.footer).read(stored, use_threads=False)
    rows = np.arange(layout.footer.num_rows, dtype=np.int64)
    table = _as_declared(plan, complete(plan, file, read, columns, len(rows)))
    if layout.kept is not None:
        starts = zip(layout.starts, layout.kept, strict=True)
        rows = np.concatenate([start + kept for start, kept in starts])
        table = table.take(rows)
    return table, layout, np.stack([np.full_like(rows, file), rows], axis=1)


def _as_declared(plan: FeedPlan, table: pa.Table) -> pa.Table:
    """Gives the columns the Arrow types of the table's Delta types, whichever the writer of the file chose."""
    return pa.table({name: _cast(table.column(name), arrow_type(plan.schema[name])) for name in table.column_names})


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):  # fields in another order
        return pa.chunked_array([pa.array(column.to_pylist(), kind)])


@dataclass(frozen=True)
class CachedRows:
    """All rows of a plan whose images are decoded already.

    Attributes:
        columns: Their small columns.
        images: Their images.
    """

    columns: StoredColumns
    images: DecodedImages


@dataclass(frozen=True)
class CachedBatch:
    """One batch of one rank; rows after those of positive weight are padding.

    Attributes:
        cached: All rows.
        rows: Numbers of the rows in stored order.
        weights: float32 [rows of the batch], 0 for padding.
    """

    cached: CachedRows
    rows: IntArray
    weights: npt.NDArray[np.float32]

    def values_of(self, column: str) -> list[Any]:
        """Gives a column of plain values, one per row."""
        values = self.cached.columns.values[column]
        return [values[row] for row in self.rows.tolist()]

    def origins(self) -> npt.NDArray[np.int64]:
        """Gives where each row is stored: int64 [rows, 2] of file index and row of the file."""
        found: npt.NDArray[np.int64] = self.cached.columns.origins[self.rows]
        return found

    def images(self) -> list[StoredImage]:
        """Gives the sizes of the images before they were resized, without their bytes."""
        return [StoredImage(None, None, *pair) for pair in self.cached.images.sizes[self.rows].tolist()]

    def undecodable(self) -> dict[int, str]:
        """Gives why rows do not decode, by row of the batch."""
        bad = self.cached.images.bad
        return {i: bad[row] for i, row in enumerate(self.rows.tolist()) if row in bad} if bad else {}

    def copy_images(self, refused: Collection[int], images: npt.NDArray[Any], first: int, last: int) -> None:
        """Copies the rows from `first` to `last` into the images of a batch, and zeros for those that were refused."""
        decoded, rows = self.cached.images.images, self.rows[first:last]
        part = images[first:last].reshape(last - first, -1)
        if part.dtype == np.uint8:
            np.take(decoded, rows, axis=0, out=part, mode="clip")  # "raise" would copy twice
        else:
            part[...] = decoded[rows]
        for row in refused:
            if first <= row < last:
                images[row] = 0


def cached_batches(shard: Shard, cached: CachedRows) -> Iterator[CachedBatch]:
    """Yields the batches that a `BatchReader` of the shard yields."""
    for epoch in shard.epoch_numbers():
        sequence = cached.columns.sequence(shard.plan, epoch)
        first = shard.first_row(epoch)
        for step in range(shard.batches.steps(first)):
            share = shard.batches.share(step, first)
            weights = np.zeros(share.rows, dtype=np.float32)
            weights[: len(share.real)] = share.weight
            own = sequence[share.real]
            yield CachedBatch(cached, np.resize(own, share.rows) if len(own) else own, weights)
