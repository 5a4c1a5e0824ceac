"""One rank's batches: rows taken from its lanes in the global order, in memory that is used again.

On images of 299 pixels, clearing pages cost more processor time than copying the pixels: 31 % of a feed of raw images.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...etl.images.stored_image import StoredImage
from ...etl.model.schema import HEIGHT, WIDTH
from .plan.epoch_order import RankShare, lanes_of_rank
from .plan.feed_plan import FeedColumns, Shard
from .reading import LaneReader, LaneRows, RowGroup

# TensorFlow takes over an array uncopied if it starts on such a boundary.
ALIGNMENT = 64


class BatchBuffers:
    """Uninitialised arrays of one shape and type; each one's memory returns once nothing refers to it any more.

    Views of an array, and tensors that TensorFlow has made of it without a copy, refer to it too.
    """

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self._shape = shape
        self._dtype = np.dtype(dtype)
        self.bytes_each = int(np.prod(shape)) * self._dtype.itemsize
        self._free: list[npt.NDArray[np.uint8]] = []

    def take(self) -> npt.NDArray[Any]:
        """Gives an array, aligned to 64 bytes, that is not in use."""
        try:
            memory = self._free.pop()
        except IndexError:
            memory = np.empty(self.bytes_each + ALIGNMENT, dtype=np.uint8)
        # A view of an array may refer to the array's own base instead of to the array. It always refers to this.
        lease = (ctypes.c_ubyte * self.bytes_each).from_buffer(memory.data, -memory.ctypes.data % ALIGNMENT)
        weakref.finalize(lease, self._free.append, memory).atexit = False
        return np.frombuffer(memoryview(lease), dtype=self._dtype).reshape(self._shape)


@dataclass(frozen=True)
class RowBatch:
    """The rows of one batch of one rank, not yet decoded.

    Rows after the first `real` are padding: real rows of the batch once more, or nothing when the rank has none.
    """

    groups: Sequence[RowGroup]  # The row group of each row
    rows: Sequence[int]  # int64, index of each row in its group
    weights: npt.NDArray[np.float32]  # float32 [rows], 0 for padding
    real: int  # Number of rows without padding

    def bytes_of(self, column: str) -> list[memoryview | None]:
        """Gives a column of bytes or text, one view per row."""
        return [group.bytes_at(column, row) for group, row in zip(self.groups, self.rows, strict=True)]

    def values_of(self, column: str) -> list[Any]:
        """Gives a column of plain values, one per row."""
        return [group.values(column)[row] for group, row in zip(self.groups, self.rows, strict=True)]

    def images(self, columns: FeedColumns, image_column: str, read: Collection[str]) -> list[StoredImage]:
        """Gives what each row stores of its image."""
        nothing = [None] * len(self.rows)
        forms, heights, widths = (
            self.values_of(name) if name is not None and name in read else nothing
            for name in (columns.format, HEIGHT, WIDTH)
        )
        return list(map(StoredImage, self.bytes_of(image_column), forms, heights, widths))

    def origins(self) -> npt.NDArray[np.int64]:
        """Gives the place of each row: int64 [rows, 2] of file index and row of the file."""
        where = [(group.file, group.first_row + row) for group, row in zip(self.groups, self.rows, strict=True)]
        return np.array(where, dtype=np.int64).reshape(-1, 2)


@dataclass
class _Lane:
    """The rows of a lane that are in memory, and whether more are on their way, or it is at its end."""

    rows: deque[LaneRows] = field(default_factory=deque)
    is_asked: bool = False


class BatchReader:
    """Iterates over one rank's batches. Close it, or use it in `with`, to end its threads."""

    def __init__(self, shard: Shard, columns: Sequence[str]) -> None:
        self._shard = shard
        self._lane_count = shard.plan.order.lanes
        own = lanes_of_rank(self._lane_count, shard.batches.rank, shard.batches.size)
        self._lanes = {lane: _Lane() for lane in own}
        self._reader = LaneReader(shard, columns, own)

    def __enter__(self) -> BatchReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the reading threads and lets go of the row groups."""
        self._reader.close()
        self._lanes.clear()

    def __iter__(self) -> Iterator[RowBatch]:
        batches = self._shard.batches
        for epoch in self._shard.epoch_numbers():
            start_row = self._shard.first_row(epoch)
            for step in range(batches.steps(start_row)):
                yield self._batch(epoch, batches.share(step, start_row))

    def _batch(self, epoch: int, share: RankShare) -> RowBatch:
        for lane in dict.fromkeys((share.real % self._lane_count).tolist()):
            if not self._lanes[lane].rows:
                self._ask(lane)
        groups: list[RowGroup] = []
        rows: list[int] = []
        for row in share.real.tolist():
            found, index = self._find(row % self._lane_count, epoch, row // self._lane_count)
            groups.append(found.group)
            rows.append(int(found.rows[index]))
        real = len(rows)
        for filler in range(share.rows - real if real else 0):
            groups.append(groups[filler])
            rows.append(rows[filler])
        weights = np.zeros(share.rows, dtype=np.float32)
        weights[:real] = share.weight
        return RowBatch(groups, rows, weights, real)

    def _find(self, lane: int, epoch: int, position: int) -> tuple[LaneRows, int]:
        """Finds a lane's row, waiting for its row group if need be.

        The lane requests its next row group once half of this one is used: a lane holds one and a half of them.
        """
        held = self._lanes[lane].rows
        while True:
            if not held:
                self._ask(lane)
                self._receive()
                continue
            found = held[0]
            index = position - found.position
            if found.epoch == epoch and index < len(found.rows):
                if 2 * index >= len(found.rows) and len(held) == 1:
                    self._ask(lane)
                return found, index
            held.popleft()

    def _ask(self, lane: int) -> None:
        """Asks for a lane's next rows, unless they are on their way or the lane is at its end."""
        if not self._lanes[lane].is_asked:
            self._lanes[lane].is_asked = True
            self._reader.ask(lane)

    def _receive(self) -> None:
        lane, rows = self._reader.take()
        if rows is not None:  # else the lane is at its end, and not asked again
            self._lanes[lane].rows.append(rows)
            self._lanes[lane].is_asked = False
