"""Reading row groups a few rows at a time, so that one that is larger than its memory is gone through only once.

Parquet has no way into the middle of a row group, so what was read of it stays open until its next rows are wanted.
Small reads also spare the kernel from clearing pages: Arrow's allocator gives pieces of 8 MiB and more back at once;
reading row groups of 32 MiB of raw pixels in one piece took two and a half times the processor time.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

import pyarrow as pa

from ....stores.parquet import parquet_of
from ..plan.feed_plan import FeedPlan
from .row_groups import FileLayout, complete, open_file, stored_columns

# Bytes of rows that are read at a time. From 8 MiB on, Arrow's allocator returns memory at once.
_STEP_BYTES = 2 << 20
# Bytes that are fetched at a time from a store where a row group is read in chunks.
_FETCHED_BYTES = 4 << 20


class RowGroupCursor:
    """Goes through one row group in stored order.

    Args:
        plan: What is read.
        file: Index of the file.
        layout: The file's layout.
        row_group: Index of the row group.
        columns: Names of the columns to read.

    Attributes:
        file: Index of the file.
        row_group: Index of the row group.
        columns: Names of the columns that are read.
        row: The row of the row group that comes next.
        rows: Rows of the row group.
    """

    def __init__(self, plan: FeedPlan, file: int, layout: FileLayout, row_group: int, columns: tuple[str, ...]) -> None:
        self._plan = plan
        self.columns = columns
        self.file = file
        self.row_group = row_group
        self.row = 0
        group = layout.footer.row_group(row_group)
        self.rows = int(group.num_rows)
        self._left: list[pa.RecordBatch] = []
        self._open = ExitStack()
        wanted = list(stored_columns(plan, columns, layout.footer).values())
        source = self._open.enter_context(open_file(plan, file))
        is_chunked, is_remote = layout.chunks[row_group] > 1, not isinstance(source, pa.NativeFile)
        parquet = parquet_of(source, layout.footer, _FETCHED_BYTES if is_chunked and is_remote else 0)
        step_bytes = min(_STEP_BYTES, max(1, plan.chunk_bytes // 4))
        step = max(1, step_bytes * self.rows // max(1, _bytes_of(group, wanted)))
        self._batches = parquet.iter_batches(step, row_groups=[row_group], columns=wanted, use_threads=False)
        self._has_columns = bool(wanted)

    def read(self, first: int, last: int) -> pa.Table:
        """Reads rows `first` to `last` of the row group, with all columns; what lies before them is passed over."""
        found: list[pa.RecordBatch] = []
        while self._has_columns and self.row < last:
            batch = self._left.pop() if self._left else next(self._batches)
            begin, end = max(first - self.row, 0), min(last - self.row, len(batch))
            if begin < end:
                found.append(batch.slice(begin, end - begin))
            if end < len(batch):
                self._left.append(batch.slice(max(end, 0)))
            self.row += min(len(batch), max(end, 0))
        self.row = last
        stored = pa.Table.from_batches(found) if self._has_columns else pa.table({})
        return complete(self._plan, self.file, stored, self.columns, last - first)

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


class CursorShelf:
    """The row groups that are half read, of one reader.

    Args:
        plan: What is read.
        limit: How many may be open; the one that was used longest ago is closed and would be begun again.
    """

    def __init__(self, plan: FeedPlan, limit: int) -> None:
        self._plan = plan
        self._limit = limit
        self._lock = threading.Lock()
        self._kept: list[RowGroupCursor] = []
        self._closed = False

    def read(
        self, file: int, layout: FileLayout, row_group: int, columns: tuple[str, ...], first: int, last: int
    ) -> pa.Table:
        """Reads some columns of some rows of a row group."""
        cursor = self._take(file, row_group, columns, first)
        if cursor is None:
            cursor = RowGroupCursor(self._plan, file, layout, row_group, columns)
        try:
            table = cursor.read(first, last)
        except BaseException:
            cursor.close()
            raise
        self._keep(cursor)
        return table

    def _take(self, file: int, row_group: int, columns: tuple[str, ...], first: int) -> RowGroupCursor | None:
        """Finds the cursor that is nearest before a row."""
        wanted = (file, row_group, columns)
        with self._lock:
            fitting = [c for c in self._kept if (c.file, c.row_group, c.columns) == wanted and c.row <= first]
            if not fitting:
                return None
            nearest = max(fitting, key=lambda cursor: cursor.row)
            self._kept.remove(nearest)
            return nearest

    def _keep(self, cursor: RowGroupCursor) -> None:
        with self._lock:
            ended = [cursor]
            if cursor.row < cursor.rows and not self._closed:
                self._kept.append(cursor)
                ended = [self._kept.pop(0)] if len(self._kept) > self._limit else []
        for one in ended:
            one.close()

    def close(self) -> None:
        """Closes all files."""
        with self._lock:
            self._closed = True
            ended, self._kept = self._kept, []
        for cursor in ended:
            cursor.close()
