"""Reads the stored images of chosen rows in Spark tasks, straight from a table's data files.

Spark reads everything but the image: it applies deletion vectors and names the data file of each remaining row. So a
task reads the images of exactly these rows, whatever features the table has, and no image passes through the JVM. Delta
names a row's position in its file only for some tables; the task finds it by the row's path and key.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from ...errors import DataFileError, NotAnImageTableError, VersionFilesMissingError
from ...etl.model import schema
from ...locations import absolute
from ...log.delta_types import spelled_in_file
from ...spark.workers import map_in_arrow
from ...stores.data_files import open_parquet_file

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql import DataFrame

    Batches: TypeAlias = Iterator[pa.RecordBatch]

# A row's data file, as Spark names it.
FILE = "_file"

# A Python worker imports TensorFlow (about 3 CPU seconds) before its first row. From about this size on a task is worth
# that: a network of 2 to 60 thousand operations per pixel takes 0.5 to 10 s for it on one core.
_PIXELS_PER_TASK = 4 << 20


@dataclass(frozen=True)
class ImageFiles:
    """The image column of a table's data files, as Spark tasks read it."""

    column: str  # The column's name in the files
    # The columns that identify a row within a file: their names in the files, by their names in the rows
    keys: Mapping[str, str]
    storage_options: Mapping[str, str]  # Access to an object store, under delta-rs' names
    batch_bytes: int  # Most bytes of stored images in one batch; a batch has at least one row
    # Positions of the rows that deletion vectors mark, by the file's location
    deleted: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)

    def predicted(
        self,
        rows: DataFrame,
        predict: Callable[[Batches], Batches],
        ddl: str,
        *,
        count: int,
        image_pixels: int,
        slots: int,
    ) -> DataFrame:
        """Runs a function over rows and their images, in tasks that each read neighbouring rows."""
        tasks = tasks_for(count, image_pixels, slots)
        # Ranges take a job that samples the rows and one that moves them.
        parts = rows.coalesce(1) if tasks == 1 else rows.repartitionByRange(tasks, FILE, *self.keys)
        ordered = parts.sortWithinPartitions(FILE)
        return map_in_arrow(ordered, lambda batches: predict(self.with_images(batches)), ddl)

    def with_images(self, batches: Iterable[pa.RecordBatch]) -> Batches:
        """Replaces the column `FILE` by the column `image`."""
        for batch in batches:
            files = batch.column(batch.schema.names.index(FILE)).to_pylist()
            start = 0
            for file, same in itertools.groupby(files):
                count = len(list(same))
                # Spark writes paths as URIs.
                location = absolute(file) if file.startswith("file:") else unquote(file)
                yield from self._read(location, batch.slice(start, count))
                start += count

    def _read(self, location: str, rows: pa.RecordBatch) -> Batches:
        import pyarrow as pa

        names = [name for name in rows.schema.names if name != FILE]
        try:
            with open_parquet_file(location, self.storage_options) as parquet:
                positions = self._positions(location, parquet, rows)
                order = np.argsort(positions, kind="stable")
                start = 0
                for images in self._images(location, parquet, positions[order]):
                    taken = rows.take(pa.array(order[start : start + len(images)]))
                    passed = {name: taken.column(taken.schema.names.index(name)) for name in names}
                    yield pa.RecordBatch.from_pydict(passed | {schema.IMAGE: images})
                    start += len(images)
        except FileNotFoundError as error:
            raise VersionFilesMissingError(
                f"{location}: this data file is gone. It was removed by VACUUM or by hand; score another version, or "
                "restore the file"
            ) from error

    def _positions(self, location: str, parquet: pq.ParquetFile, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Finds the positions of rows in their file, where deleted rows count; of equal rows with a key, the first."""
        import pyarrow as pa

        present = spelled_in_file(self.keys.values(), parquet.schema_arrow.names, location)
        stored = parquet.read(columns=list(present.values()))
        columns = [
            stored.column(present[name]).cast(pa.string()).to_pylist() if name in present else [None] * stored.num_rows
            for name in self.keys.values()
        ]
        found: list[tuple[str | None, ...] | None] = list(zip(*columns, strict=True))
        for position in self.deleted.get(location, ()):
            found[position] = None  # no row of the version
        wanted = list(zip(*(rows.column(rows.schema.names.index(name)).to_pylist() for name in self.keys), strict=True))
        first = {key: position for position, key in reversed(list(enumerate(found)))}
        lacking = next((key for key in wanted if key not in first), None)
        if lacking is not None:
            raise DataFileError(f"{location} has no row with {', '.join(self.keys)} = {lacking}; was it replaced?")
        if len(first) < len(found):
            counts = Counter(found)
            # Without a key, or with a null one, rows of one path cannot be told apart.
            several = next((key for key in wanted if counts[key] > 1 and None in (key[1:] or (None,))), None)
            if several is not None:
                raise NotAnImageTableError(
                    f"{location}: {counts[several]} rows have the path {several[0]!r}; name a column that changes when "
                    "the image changes: key=... (--key)"
                )
        return np.array([first[key] for key in wanted], np.int64)

    def _images(self, location: str, parquet: pq.ParquetFile, wanted: npt.NDArray[np.int64]) -> Iterator[pa.Array]:
        """Reads the images at sorted positions of a file."""
        import pyarrow as pa

        column = spelled_in_file([self.column], parquet.schema_arrow.names, location).get(self.column)
        if column is None:  # it was added to the table later
            yield pa.nulls(len(wanted), pa.binary())
            return
        first = 0
        for group in range(parquet.num_row_groups):
            rows = parquet.metadata.row_group(group).num_rows
            yield from self._read_group(parquet, column, group, _within(wanted, first, rows))
            first += rows

    def _read_group(
        self, parquet: pq.ParquetFile, column: str, group: int, wanted: npt.NDArray[np.int64]
    ) -> Iterator[pa.Array]:
        if not len(wanted):
            return
        import pyarrow as pa

        described = parquet.metadata.row_group(group)
        size = max(1, min(described.num_rows, self.batch_bytes * described.num_rows // described.total_byte_size))
        first = 0
        for batch in parquet.iter_batches(size, row_groups=[group], columns=[column]):
            found = _within(wanted, first, batch.num_rows)
            first += batch.num_rows
            if len(found):
                yield batch.column(0).take(pa.array(found))
            if first > wanted[-1]:
                return


def tasks_for(rows: int, image_pixels: int, slots: int) -> int:
    """Chooses a number of tasks between 1 and the slots, each with enough work to be worth a worker's start."""
    return max(1, min(slots, -(-rows * image_pixels // _PIXELS_PER_TASK)))


def _within(positions: npt.NDArray[np.int64], first: int, count: int) -> npt.NDArray[np.int64]:
    """Takes the sorted positions from `first` up to `first + count`, counted from `first`."""
    start, stop = np.searchsorted(positions, [first, first + count])
    return positions[start:stop] - first
