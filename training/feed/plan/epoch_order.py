"""The global order of rows in an epoch and its division over ranks: pure arithmetic on numbers of rows.

An epoch over N rows is one sequence g = 0 .. N-1, made from (seed, epoch, rows per file) alone. Batch b holds the rows
[b * n, (b + 1) * n) for a global batch size of n; rank r of s takes those with g % s == r. So the global batches are
the same at any number of ranks.

The sequence is the round-robin of L lanes: lane j holds the rows with g % L == j. In an epoch the files are permuted,
in each file its row groups, in each row group its rows; a lane holds a contiguous part of this order. When s divides L,
a rank reads its own L / s lanes only. A row group larger than a lane may hold is read in chunks, in stored order, and
its rows are permuted within each chunk.

Permutations are sorts of hashed numbers (splitmix64, Steele, Lea and Flood 2014) rather than a library's generator, so
that a position that was saved with one version of NumPy means the same rows under another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from ....errors import InvalidArgumentError
from ....options import whole_number

IntArray = npt.NDArray[np.int64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)

# The permuted rows of chunks that some lane reads now. All lanes of a small table lie in a few row groups, and each
# takes a few of their rows: sorting a whole row group for each lane would take most of the time to the first batch.
_SHARED_ROWS: WeakValueDictionary[tuple[int, ...], IntArray] = WeakValueDictionary()


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Finalises 64-bit words with splitmix64's mixer."""
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * _MIX_1
        values = (values ^ (values >> np.uint64(27))) * _MIX_2
    mixed: npt.NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed


def permutation(count: int, *keys: int) -> IntArray:
    """Permutes 0 .. count-1 as a function of `keys` alone: int64 [count]."""
    state = np.zeros(1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for key in keys:
            state = _mix((state + _GOLDEN) ^ np.array([key & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64))
        words = _mix(state + _GOLDEN * np.arange(1, count + 1, dtype=np.uint64))
    return np.argsort(words, kind="stable").astype(np.int64)


def spread(count: int) -> IntArray:
    """Orders 0 .. count-1, int64 [count], so that neighbouring numbers come to lie far apart.

    This is the sequence of van der Corput (1935) in base 2: by bits read backwards.
    """
    numbers = np.arange(count, dtype=np.int64)
    bits = max(1, (count - 1).bit_length())
    backwards = sum(((numbers >> bit) & 1) << (bits - 1 - bit) for bit in range(bits))
    return np.argsort(backwards, kind="stable").astype(np.int64)


class FileSlice(NamedTuple):
    """Consecutive rows of one lane that lie in one file."""

    epoch: int  # The epoch whose order the rows are in
    file: int  # Index of the file
    first: int  # Offset of the first row in the order of the file (its permuted row groups, their permuted rows)
    last: int  # Offset after the last row
    position: int  # Position of the first row in the lane (its row is g = position * lanes + lane)


class RowGroupSlice(NamedTuple):
    """Rows of one chunk of a row group, in the order of an epoch. A row group that fits in memory is one chunk."""

    row_group: int  # Index of the row group in its file
    first: int  # First row of the chunk in the row group
    last: int  # Row after the chunk's last
    rows: IntArray  # int64, indices of rows in the row group, each within `first` to `last`


@dataclass(frozen=True)
class GlobalOrder:
    """The order of all rows of a feed in every epoch."""

    rows_per_file: IntArray  # int64 [files], rows of each file, in stored order
    lanes: int = 16  # Number of lanes; 1 unless `shuffle`
    seed: int = 0  # Seed of the permutations
    shuffle: bool = True  # False reads files, row groups and rows in stored order
    rows: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lanes", whole_number("lanes", self.lanes, 1))
        object.__setattr__(self, "seed", whole_number("seed", self.seed))
        if not self.shuffle and self.lanes != 1:
            raise InvalidArgumentError(f"lanes={self.lanes}: the stored order (shuffle=False) is one lane")
        object.__setattr__(self, "rows", int(self.rows_per_file.sum()))

    def lane_rows(self, lane: int) -> int:
        """Counts the rows of a lane: those with g % lanes == lane."""
        return max(0, -(-(self.rows - lane) // self.lanes))

    def lane_start(self, lane: int) -> int:
        """Gives the offset in the order of the files at which a lane starts."""
        return int(_lane_starts(self.rows, self.lanes)[lane])

    def lane_position(self, lane: int, row: int) -> int:
        """Counts the rows of a lane that come before global row `row`: the lane's position there."""
        return max(0, -(-(row - lane) // self.lanes))

    def epoch(self, epoch: int) -> EpochOrder:
        """Orders the files of one epoch."""
        files = self._permuted(len(self.rows_per_file), epoch)
        ends = np.cumsum(self.rows_per_file[files]) if len(files) else np.zeros(0, dtype=np.int64)
        return EpochOrder(self, epoch, files, ends)

    def row_group_slices(
        self,
        epoch: int,
        file: int,
        row_group_rows: Sequence[int],
        first: int,
        last: int,
        chunks: Sequence[int] | None = None,
    ) -> Iterator[RowGroupSlice]:
        """Yields the rows at some offsets of a file's order, chunk by chunk."""
        counts = np.asarray(row_group_rows, dtype=np.int64)
        order = self._permuted(len(counts), epoch, file)
        ends = np.cumsum(counts[order])
        while first < last:
            index = int(np.searchsorted(ends, first, side="right"))
            row_group = int(order[index])
            rows = int(counts[row_group])
            start = int(ends[index]) - rows
            count = chunks[row_group] if chunks is not None else 1
            chunk = _chunk_at(rows, count, first - start)
            begin, end = chunk * rows // count, (chunk + 1) * rows // count
            within = self._rows_of_chunk(begin, end, epoch, file, row_group, chunk)
            found = RowGroupSlice(row_group, begin, end, within[first - start - begin : last - start - begin])
            yield found
            first += len(found.rows)

    def _permuted(self, count: int, *keys: int) -> IntArray:
        if not self.shuffle:
            return np.arange(count, dtype=np.int64)
        return permutation(count, self.seed, *keys)

    def _rows_of_chunk(self, first: int, last: int, *keys: int) -> IntArray:
        """Permutes the rows `first` to `last` of a row group; lanes that read them at the same time share the array."""
        if not self.shuffle:
            return np.arange(first, last, dtype=np.int64)
        key = (self.seed, first, last, *keys)
        rows = _SHARED_ROWS.get(key)
        if rows is None:
            rows = first + self._permuted(last - first, *keys)
            rows.flags.writeable = False
            _SHARED_ROWS[key] = rows
        return rows


@lru_cache(maxsize=16)
def _lane_starts(rows: int, lanes: int) -> IntArray:
    # Neighbouring lanes lie far apart among the files, so that small batches are mixed too.
    laid_out = spread(lanes)
    lengths = (rows - laid_out + lanes - 1) // lanes
    starts = np.empty(lanes, dtype=np.int64)
    starts[laid_out] = np.cumsum(lengths) - lengths
    return starts


def _chunk_at(rows: int, parts: int, row: int) -> int:
    """Finds the chunk that holds a row, when chunk c of a row group is [c * rows // parts, (c + 1) * rows // parts)."""
    chunk = row * parts // rows
    return chunk + 1 if (chunk + 1) * rows // parts <= row else chunk


@dataclass(frozen=True)
class EpochOrder:
    """The files of one epoch in their order, with the offsets at which each ends."""

    order: GlobalOrder  # The global order that this is one epoch of
    epoch: int  # The epoch
    files: IntArray  # int64 [files], the files in the order of the epoch
    ends: IntArray  # int64 [files], offset after each of `files`

    def slices(self, lane: int, position: int = 0) -> Iterator[FileSlice]:
        """Yields the rows of a lane, file by file."""
        offset = self.order.lane_start(lane) + position
        stop = self.order.lane_start(lane) + self.order.lane_rows(lane)
        index = int(np.searchsorted(self.ends, offset, side="right"))
        while offset < stop:
            file, end = int(self.files[index]), int(self.ends[index])
            start = end - int(self.order.rows_per_file[file])
            last = min(end, stop)
            if last > offset:
                yield FileSlice(self.epoch, file, offset - start, last - start, position)
            position += last - offset
            offset = last
            index += 1


def lanes_of_rank(lanes: int, rank: int, size: int) -> list[int]:
    """Lists the lanes that hold a row of a rank: those congruent to it modulo gcd(size, lanes)."""
    shared = int(np.gcd(size, lanes))
    return [lane for lane in range(lanes) if lane % shared == rank % shared]


class RankShare(NamedTuple):
    """This rank's part of one global batch."""

    real: IntArray  # int64 [<= rows], the global rows g of this rank, ascending
    rows: int  # Rows of the batch that this rank gets, the same on all ranks; those after `real` are padding
    weight: float  # Weight of a real row


@dataclass(frozen=True)
class RankBatches:
    """The batches of one rank, in an epoch that starts at a global row.

    Of a global batch of n rows every rank gets ceil(n / size) rows, so that all ranks have equal shapes. A rank's loss
    is sum(weight * loss) / rows. Averaged over the ranks this is sum(loss) / n, the loss of one process on the whole
    batch, when a real row weighs size * rows / n (1 if size divides n) and padding weighs 0.
    """

    rows: int  # Rows of the whole epoch
    global_batch_size: int  # Rows of a global batch; the last one of an epoch may have fewer
    rank: int = 0  # This rank
    size: int = 1  # Number of ranks
    replicas: int = 1  # Devices of this process that share its rows equally: they are a multiple of this
    # Whether a real row weighs 1 in every batch, for a training step that counts real rows itself
    equal_weights: bool = False

    def __post_init__(self) -> None:
        for name, least in (("global_batch_size", 1), ("rank", 0), ("size", 1), ("replicas", 1)):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), least))
        if self.rank >= self.size:
            raise InvalidArgumentError(f"rank={self.rank}: ranks of a job of size {self.size} are 0 to {self.size - 1}")

    @property
    def most_rows(self) -> int:
        """Rows of a whole batch of this rank, padding included."""
        return self._rows_of(self.global_batch_size)

    @property
    def is_whole(self) -> bool:
        """Whether this rank alone gets all rows of a batch, without padding."""
        return self.size * self.replicas == 1

    def steps(self, start_row: int = 0) -> int:
        """Counts the batches from a global row to the end of the epoch; the same on every rank."""
        return max(0, -(-(self.rows - start_row) // self.global_batch_size))

    def share(self, step: int, start_row: int = 0) -> RankShare:
        """Gives this rank's part of a batch."""
        first = start_row + step * self.global_batch_size
        last = min(first + self.global_batch_size, self.rows)
        real = np.arange(first + (self.rank - first) % self.size, last, self.size, dtype=np.int64)
        rows = self._rows_of(last - first)
        return RankShare(real, rows, 1.0 if self.equal_weights else self.size * rows / (last - first))

    def _rows_of(self, count: int) -> int:
        return self.replicas * -(-count // (self.size * self.replicas))
