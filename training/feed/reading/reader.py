"""The one module that knows Petastorm: row groups read by its worker pool, in the order in which they are asked for.

Petastorm's own Reader deals row groups by itself, reads the footer of every file first and bounds its memory by a
number of row groups. Here its ThreadPool and ArrowReaderWorker are fed by tickets: each ticket that is ventilated is
one row group that the epoch's order needs next, and as many are out as the caller holds memory for.
"""

from __future__ import annotations

import threading
import time
import warnings
import weakref
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ....errors import FeedError, FeedStalledError, LakelensError
from ..plan.epoch_order import Piece
from ..plan.feed_plan import FeedPlan, files_missing
from .cursors import CursorShelf
from .row_groups import FileLayout, RowGroup, mapped_columns

with warnings.catch_warnings():
    # Petastorm 0.13 imports pyarrow's legacy file systems, each of which warns.
    warnings.simplefilter("ignore")
    from petastorm.arrow_reader_worker import ArrowReaderWorker
    from petastorm.workers_pool.thread_pool import ThreadPool

# Layouts kept; a lane needs its file's once per row group. About 10 kB each.
_CACHED_LAYOUTS = 256
# The results queue holds no more than the tickets that are out, and those are bounded by the caller.
_UNBOUNDED = 1 << 30
# A read that is on its way takes less, unless the store hangs; whoever ends a pass early waits no longer for it.
_JOIN_TIMEOUT_S = 5.0


class _Key(NamedTuple):
    """Rows of a row group that are held together."""

    file: int
    row_group: int
    first: int
    last: int


@dataclass
class Ticket:
    """A place in the line of reads: handed to a worker early, told later what to read.

    A worker that waits for its ticket costs nothing; Petastorm's idle workers poll a thousand times a second. Results
    are in the ticket, not in the pool, which is a cycle of references that only the garbage collector takes apart.
    """

    piece: Piece | None = None
    result: Block | _Failure | None = None
    told: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Block:
    """Rows of one row group in the order of an epoch.

    Attributes:
        piece: The piece that was asked for, cut to the rows that this block holds.
        group: The row group.
        rows: int64, indices into `group`, one per row of `piece`.
    """

    piece: Piece
    group: RowGroup
    rows: np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class _Failure:
    error: Exception


class _Latch:
    """A lock that can be referred to weakly."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


class _Shelf:
    """What the workers of one reader share: layouts of files, and the row groups that are in use right now."""

    def __init__(self, plan: FeedPlan, columns: tuple[str, ...]) -> None:
        self.plan = plan
        self._columns = columns
        self._cursors = CursorShelf(plan, plan.order.lanes)
        self._lock = threading.Lock()
        self._layouts: OrderedDict[int, FileLayout] = OrderedDict()
        self._groups: weakref.WeakValueDictionary[_Key, RowGroup] = weakref.WeakValueDictionary()
        self._latches: weakref.WeakValueDictionary[_Key, _Latch] = weakref.WeakValueDictionary()

    def layout(self, file: int) -> FileLayout:
        """Gives a file's layout, checked against the plan; the last ones are kept."""
        with self._lock:
            if file in self._layouts:
                self._layouts.move_to_end(file)
                return self._layouts[file]
        layout = FileLayout.of(self.plan, file)
        with self._lock:
            self._layouts[file] = layout
            while len(self._layouts) > _CACHED_LAYOUTS:
                self._layouts.popitem(last=False)
        return layout

    def group(self, key: _Key, layout: FileLayout) -> RowGroup:
        """Gives a row group: the one that some lane still holds, or a newly read one. Two lanes read it once."""
        with self._lock:
            latch = self._latches.get(key)
            if latch is None:
                latch = self._latches[key] = _Latch()
        with latch.lock:
            with self._lock:
                group = self._groups.get(key)
            if group is None:
                group = self._read(key, layout)
                with self._lock:
                    self._groups[key] = group
        return group

    def _read(self, key: _Key, layout: FileLayout) -> RowGroup:
        mapped = mapped_columns(self.plan, key.file, layout, key.row_group, self._columns, key.first, key.last)
        others = tuple(name for name in self._columns if name not in mapped)
        table = self._cursors.read(key.file, layout, key.row_group, others, key.first, key.last)
        return RowGroup(key.file, layout.starts[key.row_group] + key.first, table, mapped)

    def close(self) -> None:
        """Closes the files of row groups that are half read, and lets go of layouts."""
        self._cursors.close()
        with self._lock:
            self._layouts.clear()


class _RowGroupWorker(ArrowReaderWorker):  # type: ignore[misc]
    """Petastorm's Arrow worker, told what to read by tickets.

    It publishes each ticket exactly once, with a Block or a _Failure: an exception that leaves `process` would end the
    worker's thread and print a traceback.
    """

    def __init__(self, worker_id: int, publish_func: Any, args: tuple[Any, ...]) -> None:
        self._shelf: _Shelf = args[-1]
        super().__init__(worker_id, publish_func, args[:-1])

    def process(self, ticket: Ticket) -> None:
        ticket.told.wait()
        if ticket.piece is None:
            return
        try:
            ticket.result = self._read(ticket.piece)
        except Exception as error:  # noqa: BLE001 - handed to the thread that waits for it
            ticket.result = _Failure(error)
        self.publish_func(ticket)
        ticket.done.set()

    def _read(self, piece: Piece) -> Block:
        plan = self._shelf.plan
        try:
            layout = self._shelf.layout(piece.file)
            chosen = plan.order.file_slice(piece.epoch, piece.file, layout.rows, piece.first, piece.last, layout.chunks)
            key, rows = _Key(piece.file, chosen.row_group, chosen.first, chosen.last), chosen.rows
            if layout.kept is not None:
                kept = layout.kept[chosen.row_group]
                rows = kept[rows]
                if layout.chunks[chosen.row_group] == 1:
                    key = key._replace(first=0, last=layout.footer.row_group(chosen.row_group).num_rows)
                else:
                    key = key._replace(first=int(kept[chosen.first]), last=int(kept[chosen.last - 1]) + 1)
            group = self._shelf.group(key, layout)
        except FileNotFoundError as error:
            raise files_missing(plan.location, plan.version, [plan.file_location(piece.file)]) from error
        except LakelensError:
            raise
        except Exception as error:  # each store's client has exceptions of its own
            raise FeedError(
                f"{plan.location}@{plan.version}: {plan.file_location(piece.file)} cannot be read: "
                f"{type(error).__name__}: {error}"
            ) from error
        return Block(piece._replace(last=piece.first + len(rows)), group, rows - key.first)


class _Pool(ThreadPool):  # type: ignore[misc]
    """Petastorm's pool of threads, with an end to the wait for them."""

    def join_within(self, timeout_s: float) -> None:
        """Waits for all threads together; those that have not ended by then are left behind as daemon threads."""
        deadline = time.monotonic() + timeout_s
        for worker in self._workers:
            worker.join(max(0.0, deadline - time.monotonic()))


class RowGroupReader:
    """Reads pieces of the epochs' walks in parallel and gives them back in the order in which they were asked for.

    Args:
        plan: What is read.
        columns: Names of the columns to read.
        threads: Number of reading threads.
        timeout_s: Seconds after which a read that has not answered is an error.
    """

    def __init__(self, plan: FeedPlan, columns: tuple[str, ...], threads: int, timeout_s: float) -> None:
        self._plan = plan
        self._timeout_s = timeout_s
        self._waiting: deque[Ticket] = deque()
        self._open: deque[Ticket] = deque()
        self._stalled = False
        self._closed = False
        self._pool = _Pool(threads, results_queue_size=_UNBOUNDED)
        # The places of Petastorm's own arguments: file system, paths, schema, n-gram, pieces, cache, transform,
        # transformed schema, filters, shuffle, seed. The worker above needs none of them.
        self._shelf = _Shelf(plan, columns)
        self._pool.start(
            _RowGroupWorker, (None, None, None, None, None, None, None, None, None, False, None, self._shelf)
        )
        for _ in range(threads):
            self._ventilate()

    def _ventilate(self) -> None:
        ticket = Ticket()
        self._open.append(ticket)
        self._pool.ventilate(ticket)

    def ask(self, piece: Piece) -> None:
        """Asks for the first row group of a piece; `take` gives the answers in the order of the questions."""
        ticket = self._open.popleft()
        ticket.piece = piece
        self._waiting.append(ticket)
        self._ventilate()
        ticket.told.set()

    def take(self) -> Block:
        """Waits for the oldest question's answer.

        Raises:
            FeedStalledError: If it does not come within the time limit; names the file.
            VersionFilesMissingError: If the file is gone.
            FeedError: If the file cannot be read, or is not the one that was committed.
        """
        ticket = self._waiting.popleft()
        if not ticket.done.wait(self._timeout_s):
            self._stalled = True
            file = ticket.piece.file if ticket.piece is not None else 0
            raise FeedStalledError(
                f"{self._plan.location}@{self._plan.version}: {self._plan.file_location(file)} has not answered for "
                f"{self._timeout_s:g} s; check the store, or raise read_timeout_s"
            )
        self._pool.get_results()
        result, ticket.result = ticket.result, None
        if isinstance(result, _Failure):
            try:
                raise result.error
            finally:
                del result  # the error's traceback holds this frame
        if result is None:
            raise RuntimeError("a reading thread answered without a result")
        return result

    def close(self) -> None:
        """Ends the threads. One that hangs in a read is left behind as a daemon thread: nothing can end it."""
        if self._closed:
            return
        self._closed = True
        self._pool.stop()
        for ticket in self._open:
            ticket.told.set()
        if not self._stalled:
            self._pool.join_within(min(self._timeout_s, _JOIN_TIMEOUT_S))
        for ticket in self._waiting:
            ticket.result = None
        self._shelf.close()
