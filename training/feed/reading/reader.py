"""Row groups read by a few threads, in the order in which they are asked for.

The threads are daemons: those of the standard library's pool are joined when the interpreter ends, so that a read that
hangs would hang the process too.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections import OrderedDict, deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ....errors import FeedError, FeedStalledError, LakelensError
from ..plan.epoch_order import LanePiece
from ..plan.feed_plan import FeedPlan, files_missing
from .cursors import CursorShelf
from .row_groups import FileLayout, RowGroup

# Layouts kept; a lane needs its file's once per row group. About 10 kB each.
_CACHED_LAYOUTS = 256
# A read that is on its way takes less, unless the store hangs; whoever ends a pass early waits no longer for it.
_JOIN_TIMEOUT_S = 5.0


class _Key(NamedTuple):
    """Rows of a row group that are held together."""

    file: int
    row_group: int
    first: int
    last: int


@dataclass(frozen=True)
class Block:
    """Rows of one row group in the order of an epoch.

    Attributes:
        piece: The piece that was asked for, cut to the rows that this block holds.
        group: The row group.
        rows: int64, indices into `group`, one per row of `piece`.
    """

    piece: LanePiece
    group: RowGroup
    rows: np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class _Question:
    """A piece whose first row group was asked for, and its answer."""

    piece: LanePiece
    answer: Future[Block] = field(default_factory=Future)


class _Latch:
    """A lock that can be referred to weakly."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


class _Shelf:
    """What the threads of one reader share: layouts of files, and the row groups that are in use right now."""

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
        table = self._cursors.read(key.file, layout, key.row_group, self._columns, key.first, key.last)
        return RowGroup(key.file, layout.starts[key.row_group] + key.first, table)

    def block(self, piece: LanePiece) -> Block:
        """Reads the first row group of a piece.

        Raises:
            VersionFilesMissingError: If the file is gone.
            FeedError: If the file cannot be read, or is not the one that was committed.
        """
        plan = self.plan
        try:
            layout = self.layout(piece.file)
            chosen = plan.order.file_slice(piece.epoch, piece.file, layout.rows, piece.first, piece.last, layout.chunks)
            key, rows = _Key(piece.file, chosen.row_group, chosen.first, chosen.last), chosen.rows
            if layout.kept is not None:
                kept = layout.kept[chosen.row_group]
                rows = kept[rows]
                if layout.chunks[chosen.row_group] == 1:
                    key = key._replace(first=0, last=layout.footer.row_group(chosen.row_group).num_rows)
                else:
                    key = key._replace(first=int(kept[chosen.first]), last=int(kept[chosen.last - 1]) + 1)
            group = self.group(key, layout)
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

    def close(self) -> None:
        """Closes the files of row groups that are half read, and lets go of layouts."""
        self._cursors.close()
        with self._lock:
            self._layouts.clear()


def _serve(shelf: _Shelf, questions: queue.SimpleQueue[_Question | None]) -> None:
    """Answers questions until there is None: what one thread does."""
    while (question := questions.get()) is not None:
        if question.answer.set_running_or_notify_cancel():
            try:
                question.answer.set_result(shelf.block(question.piece))
            except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
                question.answer.set_exception(error)
        del question  # the row group is not kept until the next question


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
        self._waiting: deque[_Question] = deque()
        self._stalled = False
        self._closed = False
        self._shelf = _Shelf(plan, columns)
        self._questions: queue.SimpleQueue[_Question | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=_serve, args=(self._shelf, self._questions), daemon=True, name=f"lakelens-read-{i}")
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def ask(self, piece: LanePiece) -> None:
        """Asks for the first row group of a piece; `take` gives the answers in the order of the questions."""
        question = _Question(piece)
        self._waiting.append(question)
        self._questions.put(question)

    def take(self) -> Block:
        """Waits for the oldest question's answer.

        Raises:
            FeedStalledError: If it does not come within the time limit; names the file.
            VersionFilesMissingError: If the file is gone.
            FeedError: If the file cannot be read, or is not the one that was committed.
        """
        question = self._waiting.popleft()
        try:
            return question.answer.result(self._timeout_s)
        except FutureTimeoutError:
            self._stalled = True
            raise FeedStalledError(
                f"{self._plan.location}@{self._plan.version}: {self._plan.file_location(question.piece.file)} has not "
                f"answered for {self._timeout_s:g} s; check the store, or raise read_timeout_s"
            ) from None
        finally:
            del question  # it holds the error, whose traceback holds this frame

    def close(self) -> None:
        """Ends the threads. One that hangs in a read is left behind: nothing can end it."""
        if self._closed:
            return
        self._closed = True
        for question in self._waiting:
            question.answer.cancel()
        self._waiting.clear()
        for _ in self._threads:
            self._questions.put(None)
        if not self._stalled:
            deadline = time.monotonic() + min(self._timeout_s, _JOIN_TIMEOUT_S)
            for thread in self._threads:
                thread.join(max(0.0, deadline - time.monotonic()))
        self._shelf.close()
