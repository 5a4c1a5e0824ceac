"""One rank's batches: rows taken from its lanes in the global order, with the next row groups already on their way."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from .plan.epoch_order import EpochWalk, LanePiece, RankBatches, RankShare, lanes_of_rank
from .plan.feed_plan import FeedPlan
from .plan.position import Start
from .reading.reader import Block, RowGroupReader
from .reading.row_groups import RowGroup


@dataclass(frozen=True)
class RowBatch:
    """The rows of one batch of one rank, not yet decoded.

    Rows after the first `real` are padding: real rows of the batch once more, or nothing when the rank has none.

    Attributes:
        groups: The row group of each row.
        rows: int64, index of each row in its group.
        weights: float32 [rows], 0 for padding.
        real: Number of rows that are no padding.
    """

    groups: Sequence[RowGroup]
    rows: Sequence[int]
    weights: npt.NDArray[np.float32]
    real: int

    def bytes_of(self, column: str) -> list[memoryview | None]:
        """Gives a column of bytes or text, one view per row."""
        return [group.binary(column).at(row) for group, row in zip(self.groups, self.rows, strict=True)]

    def values_of(self, column: str) -> list[Any]:
        """Gives a column of plain values, one per row."""
        return [group.values(column)[row] for group, row in zip(self.groups, self.rows, strict=True)]

    def origins(self) -> npt.NDArray[np.int64]:
        """Says where each row is stored: int64 [rows, 2] of file index and row of the file."""
        where = [(group.file, group.first_row + row) for group, row in zip(self.groups, self.rows, strict=True)]
        return np.array(where, dtype=np.int64).reshape(-1, 2)


class _Lane:
    """One lane's row groups: the one in use, and the one that was asked for ahead."""

    def __init__(self, pieces: Iterator[LanePiece]) -> None:
        self._pieces = pieces
        self._next: LanePiece | None = next(pieces, None)
        self.blocks: deque[Block] = deque()
        self.asked: LanePiece | None = None

    def ask(self, reader: RowGroupReader) -> bool:
        """Asks for the lane's next row group, unless one is on its way or the lane is at its end."""
        if self.asked is not None or self._next is None:
            return False
        self.asked, self._next = self._next, None
        reader.ask(self.asked)
        return True

    def receive(self, block: Block) -> None:
        """Takes the answer to the last question and finds what the next question is."""
        asked = self.asked
        if asked is None:
            raise RuntimeError("a lane received a block that it had not asked for")
        self.blocks.append(block)
        self.asked = None
        taken = block.piece.last - asked.first
        if block.piece.last < asked.last:
            self._next = asked._replace(first=block.piece.last, position=asked.position + taken)
        else:
            self._next = next(self._pieces, None)


class BatchReader:
    """Iterates over one rank's batches. Close it, or use it in `with`, to end its threads.

    Args:
        plan: What is read.
        columns: Names of the columns to read.
        batches: Which rows of the global order are this rank's.
        start: Where to begin.
        epochs: How many epochs to go through, the first one counted from `start`; None never ends.
        threads: Number of reading threads.
        timeout_s: Seconds after which a read that has not answered is an error.
    """

    def __init__(
        self,
        plan: FeedPlan,
        columns: Sequence[str],
        batches: RankBatches,
        *,
        start: Start,
        epochs: int | None = 1,
        threads: int = 4,
        timeout_s: float = 45.0,
    ) -> None:
        self._plan = plan
        self._batches = batches
        self._start = start
        self._epochs = epochs
        self._walks: dict[int, EpochWalk] = {}
        self._line: deque[_Lane] = deque()
        self._reader = RowGroupReader(plan, tuple(columns), threads, timeout_s)
        own = lanes_of_rank(plan.order.lanes, batches.rank, batches.size)
        self._lanes = {lane: _Lane(self._pieces(lane)) for lane in own}

    def __enter__(self) -> BatchReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the reading threads and lets go of the row groups."""
        self._reader.close()
        # Each lane's pieces refer to this reader: a cycle that would keep row groups until a garbage collection.
        self._lanes.clear()
        self._line.clear()

    def __iter__(self) -> Iterator[RowBatch]:
        for epoch in self._epoch_numbers():
            start_row = self._start.row if epoch == self._start.epoch else 0
            for step in range(self._batches.steps(start_row)):
                yield self._batch(epoch, self._batches.share(step, start_row))

    def _epoch_numbers(self) -> Iterator[int]:
        epoch = self._start.epoch
        while self._epochs is None or epoch < self._start.epoch + self._epochs:
            yield epoch
            epoch += 1

    def _pieces(self, lane: int) -> Iterator[LanePiece]:
        if not self._plan.order.lane_rows(lane):
            return  # there are more lanes than rows; endless epochs would be looked through for this one's first
        for epoch in self._epoch_numbers():
            first = self._start.row if epoch == self._start.epoch else 0
            yield from self._walk(epoch).pieces(lane, self._plan.order.lane_position(lane, first))

    def _walk(self, epoch: int) -> EpochWalk:
        if epoch not in self._walks:
            # Lanes are at most one epoch apart: a lane asks for one row group ahead of the rows in use.
            self._walks = {known: walk for known, walk in self._walks.items() if known >= epoch - 1}
            self._walks[epoch] = self._plan.order.walk(epoch)
        return self._walks[epoch]

    def _batch(self, epoch: int, share: RankShare) -> RowBatch:
        lanes = self._plan.order.lanes
        for lane in dict.fromkeys((share.real % lanes).tolist()):
            self._ask(self._lanes[lane])
        groups: list[RowGroup] = []
        rows: list[int] = []
        for row in share.real.tolist():
            block, place = self._find(self._lanes[row % lanes], epoch, row // lanes)
            groups.append(block.group)
            rows.append(int(block.rows[place]))
        real = len(rows)
        for filler in range(share.rows - real if real else 0):
            groups.append(groups[filler])
            rows.append(rows[filler])
        weights = np.zeros(share.rows, dtype=np.float32)
        weights[:real] = share.weight
        return RowBatch(groups, rows, weights, real)

    def _ask(self, lane: _Lane) -> None:
        """Asks ahead once half of what the lane holds is used, so that a lane holds one and a half row groups."""
        if not lane.blocks and lane.ask(self._reader):
            self._line.append(lane)

    def _find(self, lane: _Lane, epoch: int, position: int) -> tuple[Block, int]:
        """Finds a lane's row, waiting for its row group if need be."""
        while True:
            if lane.blocks:
                block = lane.blocks[0]
                place = position - block.piece.position
                if block.piece.epoch == epoch and place < len(block.rows):
                    if 2 * place >= len(block.rows) and len(lane.blocks) == 1 and lane.ask(self._reader):
                        self._line.append(lane)
                    return block, place
                lane.blocks.popleft()
            else:
                if lane.ask(self._reader):
                    self._line.append(lane)
                self._receive()

    def _receive(self) -> None:
        self._line.popleft().receive(self._reader.take())
