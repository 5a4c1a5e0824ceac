"""Row groups: how a file is laid out, and the lanes of a shard, read by a few threads in the order of the requests.

Rows are read in small steps, also those of a whole row group, which spares the kernel from clearing pages: Arrow's
allocator returns pieces of 8 MiB and more at once; reading row groups of 32 MiB of raw pixels in one piece took two and
a half times the processor time.

The threads are daemons: those of the standard library's pool are joined when the interpreter ends, so that a read that
hangs would hang the process too.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...errors import FeedError, FeedStalledError
from ...log.data_files import complete, stored_columns
from ...log.delta_types import arrow_type
from ...stores.data_files import open_location, parquet_of
from .plan.epoch_order import FileSlice, IntArray, RowGroupSlice
from .plan.feed_plan import FeedPlan, RowFilter, Shard, chunks_of, naming_file

# Bytes of rows that are read at a time.
_STEP_BYTES = 2 << 20
# Bytes that are fetched at a time from a store where a row group is read in chunks.
_FETCHED_BYTES = 4 << 20


@dataclass(frozen=True)
class FileLayout:
    """The row groups of one file as the order of rows sees them."""

    footer: pq.FileMetaData  # The file's parsed footer
    starts: tuple[int, ...]  # Row of the file at which each row group starts
    rows: tuple[int, ...]  # Rows of each row group that are not deleted and that the plan's filters keep
    chunks: tuple[int, ...]  # Into how many chunks each row group is cut
    kept: tuple[npt.NDArray[np.int64], ...] | None  # Indices of the kept rows in each row group; None keeps all

    @classmethod
    def of(cls, plan: FeedPlan, file: int) -> FileLayout:
        """Reads a file's footer, and the columns that the plan filters by."""
        with open_file(plan, file) as source:
            parquet = parquet_of(source)
            footer = parquet.metadata
            groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
            chooses = bool(plan.filters) or len(plan.files.deleted_rows(file)) > 0
            kept = tuple(kept_rows(plan, file, parquet)) if chooses else None
        counts = [len(rows) for rows in kept] if kept is not None else [group.num_rows for group in groups]
        for found, expected, what in (
            (footer.num_rows, int(plan.stored_rows[file]), "rows"),
            (sum(counts), int(plan.files.rows[file]), "rows that are kept"),
        ):
            if found != expected:
                raise FeedError(
                    f"{plan.name}: {plan.file_location(file)} holds {found} {what}, {expected} were "
                    "planned; the file differs from the committed file"
                )
        starts = np.cumsum([0] + [group.num_rows for group in groups])[:-1]
        chunks = [
            max(1, min(count, chunks_of(group.num_rows, group.total_byte_size, plan.chunk_bytes)))
            for group, count in zip(groups, counts, strict=True)
        ]
        return cls(footer, tuple(starts.tolist()), tuple(counts), tuple(chunks), kept)


def open_file(plan: FeedPlan, file: int) -> Any:
    """Opens a data file of a plan for pyarrow's Parquet reader; use it in `with`."""
    return open_location(plan.file_location(file), plan.snapshot.table.storage_options, int(plan.files.sizes[file]))


def kept_rows(plan: FeedPlan, file: int, parquet: pq.ParquetFile) -> list[npt.NDArray[np.int64]]:
    """Finds, in each row group of a file, the rows that are not deleted and that the plan's filters keep."""
    footer, found, first = parquet.metadata, [], 0
    stored = stored_columns(plan.snapshot, file, [row_filter.column for row_filter in plan.filters], footer)
    for row_group in range(footer.num_row_groups):
        rows = footer.row_group(row_group).num_rows
        mask = plan.files.kept(file, first, rows)
        if plan.filters:
            table = parquet.read_row_group(row_group, columns=list(stored.values()), use_threads=False)
            for row_filter in plan.filters:
                name = stored.get(row_filter.column)
                column = table.column(name) if name is not None else pa.nulls(rows, pa.null())
                mask &= matches(column, row_filter, plan.schema[row_filter.column])
        found.append(np.flatnonzero(mask))
        first += rows
    return found


def matches(column: Any, row_filter: RowFilter, declared: str) -> npt.NDArray[np.bool_]:
    """Finds the values of a column that a filter keeps. As in SQL, NaN is equal to NaN and 0.0 to -0.0."""
    if declared.startswith("{"):  # compared with null alone
        return np.asarray(pc.is_null(column), dtype=bool)
    kind = arrow_type(declared)
    values = row_filter.values
    found = column.cast(kind)
    kept = np.asarray(pc.is_in(found, value_set=pa.array(values, kind)), dtype=bool)
    if pa.types.is_floating(kind):  # Arrow compares these by their bits
        if 0.0 in values:
            kept |= np.asarray(pc.fill_null(pc.equal(found, pa.scalar(0.0, kind)), False), dtype=bool)
        if any(value != value for value in values):
            kept |= np.asarray(pc.fill_null(pc.is_nan(found), False), dtype=bool)
    return kept


@dataclass(frozen=True, eq=False)
class RowGroup:
    """The wanted columns of one row group, or of a chunk of one."""

    file: int  # Index of the file
    first_row: int  # Row of the file that is row 0 of `table`
    table: pa.Table  # The columns
    _values: dict[str, list[Any]] = field(default_factory=dict, init=False)

    def bytes_at(self, column: str, row: int) -> memoryview | None:
        """Gives the bytes or text of one row, as a view of Arrow's memory; None for null."""
        found = self.table.column(column)[row].as_buffer()
        return None if found is None else memoryview(found).cast("B")

    def values(self, column: str) -> list[Any]:
        """Gives a column as Python values, None for null."""
        if column not in self._values:
            self._values[column] = self.table.column(column).to_pylist()
        return self._values[column]


class OpenRowGroup:
    """One row group, read in stored order. Close it.

    Parquet cannot be read from the middle of a row group, so the file stays open between the chunks of one.
    """

    def __init__(self, plan: FeedPlan, file: int, layout: FileLayout, row_group: int, columns: Sequence[str]) -> None:
        self._plan, self._file, self._columns = plan, file, columns
        self._first_row = layout.starts[row_group]
        group = layout.footer.row_group(row_group)
        self.rows = int(group.num_rows)
        self._stored = list(stored_columns(plan.snapshot, file, columns, layout.footer).values())
        step_bytes = min(_STEP_BYTES, max(1, plan.chunk_bytes // 4))
        step = max(1, step_bytes * self.rows // max(1, _bytes_of(group, self._stored)))
        self._open = ExitStack()
        source = self._open.enter_context(open_file(plan, file))
        is_chunked, is_remote = layout.chunks[row_group] > 1, not isinstance(source, pa.NativeFile)
        parquet = parquet_of(source, layout.footer, _FETCHED_BYTES if is_chunked and is_remote else 0)
        self._batches = parquet.iter_batches(step, row_groups=[row_group], columns=self._stored, use_threads=False)
        self._row = 0  # of the row group, with which `_rest` or the next batch begins
        self._rest: pa.RecordBatch | None = None

    def read(self, first: int, last: int) -> RowGroup:
        """Reads rows `first` to `last` of the row group; rows that come before them cannot be read any more."""
        found: list[pa.RecordBatch] = []
        while self._stored and self._row < last:
            batch = self._rest if self._rest is not None else next(self._batches)
            begin, end = max(first - self._row, 0), min(last - self._row, len(batch))
            if begin < end:
                found.append(batch.slice(begin, end - begin))
            self._rest = batch.slice(end) if end < len(batch) else None
            self._row += end
        stored = pa.Table.from_batches(found) if self._stored else pa.table({})
        table = complete(self._plan.snapshot, self._file, stored, self._columns, last - first)
        return RowGroup(self._file, self._first_row + first, table)

    def close(self) -> None:
        """Closes the file."""
        self._open.close()


def _bytes_of(group: Any, columns: list[str]) -> int:
    """Counts the uncompressed bytes of some columns, of nested ones with all that is below them."""
    chunks = (group.column(i) for i in range(group.num_columns))
    return sum(
        chunk.total_uncompressed_size
        for chunk in chunks
        if chunk.path_in_schema in columns or chunk.path_in_schema.split(".", 1)[0] in columns
    )


# Layouts kept; a lane needs its file's once per row group. About 10 kB each.
_CACHED_LAYOUTS = 256
# Lanes are at most one epoch apart: each reads one row group ahead of the rows in use.
_CACHED_EPOCHS = 2
# A lock for each row group would have to be removed again.
_LOCKS = 64
# A read in progress takes less, unless the store hangs; closing early waits no longer for it.
_JOIN_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class LaneRows:
    """Consecutive rows of a lane that lie in one row group."""

    epoch: int  # The epoch
    position: int  # Position of the first row in the lane
    group: RowGroup  # The row group
    rows: IntArray  # int64, indices into `group`, one per row of the lane


@dataclass(frozen=True)
class _Request:
    """A request for a lane's next rows; its result at the lane's end is None."""

    lane: int
    rows: Iterator[LaneRows]
    answer: Future[LaneRows | None] = field(default_factory=Future)


def _serve(requests: queue.SimpleQueue[_Request | None]) -> None:
    """Answers requests until there is None: what one thread does."""
    while (request := requests.get()) is not None:
        if request.answer.set_running_or_notify_cancel():
            try:
                request.answer.set_result(next(request.rows, None))
            except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
                request.answer.set_exception(error)
        del request  # the row group is not kept until the next request


class LaneReader:
    """Reads lanes in parallel and gives their rows in the order in which they were asked for."""

    def __init__(self, shard: Shard, columns: Sequence[str], lanes: Iterable[int]) -> None:
        self._shard, self._plan, self._columns = shard, shard.plan, tuple(columns)
        self._layout = lru_cache(_CACHED_LAYOUTS)(partial(FileLayout.of, shard.plan))
        self._epoch = lru_cache(_CACHED_EPOCHS)(shard.plan.order.epoch)
        self._groups: weakref.WeakValueDictionary[tuple[int, int], RowGroup] = weakref.WeakValueDictionary()
        self._locks = [threading.Lock() for _ in range(_LOCKS)]
        self._files: dict[int, int] = {}  # the file that each lane reads
        self._lanes = {lane: self._rows_of(lane) for lane in lanes}
        self._waiting: deque[_Request] = deque()
        self._stalled = False
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=_serve, args=(self._requests,), daemon=True, name=f"lakelens-read-{i}")
            for i in range(shard.reading.reader_threads)
        ]
        for thread in self._threads:
            thread.start()

    def ask(self, lane: int) -> None:
        """Asks for the next rows of a lane, whose last ones have been taken."""
        request = _Request(lane, self._lanes[lane])
        self._waiting.append(request)
        self._requests.put(request)

    def take(self) -> tuple[int, LaneRows | None]:
        """Waits for the oldest request; returns its lane, and the lane's next rows or None at its end."""
        request = self._waiting.popleft()
        timeout_s = self._shard.reading.read_timeout_s
        try:
            return request.lane, request.answer.result(timeout_s)
        except FutureTimeoutError:
            self._stalled = True
            file = self._files.get(request.lane)
            what = f"{self._plan.name}: {self._plan.file_location(file)}" if file is not None else self._plan.name
            raise FeedStalledError(
                f"{what} has not answered for {timeout_s:g} s; check the store, or raise read_timeout_s"
            ) from None
        finally:
            del request  # it holds the error, whose traceback holds this frame

    def close(self) -> None:
        """Ends the threads and closes the files. A thread that hangs in a read is left behind: nothing can end it."""
        for request in self._waiting:
            request.answer.cancel()
        self._waiting.clear()
        for _ in self._threads:
            self._requests.put(None)
        if not self._stalled:
            deadline = time.monotonic() + min(self._shard.reading.read_timeout_s, _JOIN_TIMEOUT_S)
            for thread in self._threads:
                thread.join(max(0.0, deadline - time.monotonic()))
        for rows in self._lanes.values():
            with suppress(ValueError):  # a thread that hangs reads it
                rows.close()
        # Each lane refers to this reader: a cycle that would keep row groups until a garbage collection.
        self._lanes.clear()

    def _rows_of(self, lane: int) -> Generator[LaneRows, None, None]:
        """Yields the rows of a lane, row group by row group; each step runs in a thread."""
        order = self._plan.order
        if not order.lane_rows(lane):
            return  # there are more lanes than rows; endless epochs would be searched for this one's first
        for epoch in self._shard.epoch_numbers():
            position = order.lane_position(lane, self._shard.first_row(epoch))
            for part in self._epoch(epoch).slices(lane, position):
                self._files[lane] = part.file
                with naming_file(self._plan, part.file):
                    yield from self._rows_in(part)

    def _rows_in(self, part: FileSlice) -> Iterator[LaneRows]:
        file, layout, position = part.file, self._layout(part.file), part.position
        order = self._plan.order
        found = order.row_group_slices(part.epoch, file, layout.rows, part.first, part.last, layout.chunks)
        for row_group, slices in groupby(found, key=attrgetter("row_group")):
            kept = layout.kept[row_group] if layout.kept is not None else None
            if layout.chunks[row_group] == 1:
                (whole,) = slices
                rows = whole.rows if kept is None else kept[whole.rows]
                yield LaneRows(part.epoch, position, self._whole(file, layout, row_group), rows)
                position += len(rows)
                continue
            with closing(OpenRowGroup(self._plan, file, layout, row_group, self._columns)) as stored:
                for chunk in slices:
                    rows = chunk.rows if kept is None else kept[chunk.rows]
                    first, last = _stored_range(chunk, kept)
                    yield LaneRows(part.epoch, position, stored.read(first, last), rows - first)
                    position += len(rows)

    def _whole(self, file: int, layout: FileLayout, row_group: int) -> RowGroup:
        """Gives a row group, which two lanes read once: another lane's if it still holds it, or a newly read one."""
        key = (file, row_group)
        with self._locks[hash(key) % _LOCKS]:
            group = self._groups.get(key)
            if group is None:
                with closing(OpenRowGroup(self._plan, file, layout, row_group, self._columns)) as stored:
                    group = self._groups[key] = stored.read(0, stored.rows)
            return group


def _stored_range(chunk: RowGroupSlice, kept: IntArray | None) -> tuple[int, int]:
    """Gives the stored rows that a chunk spans."""
    if kept is None:
        return chunk.first, chunk.last
    return int(kept[chunk.first]), int(kept[chunk.last - 1]) + 1
