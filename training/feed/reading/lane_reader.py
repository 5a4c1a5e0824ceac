"""The lanes of a shard, read by a few threads in the order in which they are asked for.

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
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import groupby
from operator import attrgetter

from ....errors import FeedStalledError
from ..plan.epoch_order import FileSlice, IntArray, RowGroupSlice
from ..plan.feed_plan import naming_file
from ..shard import Shard
from .row_groups import FileLayout, OpenRowGroup, RowGroup

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
        """Waits for the oldest request.

        Returns the lane, and its next rows; None at the lane's end.
        """
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
