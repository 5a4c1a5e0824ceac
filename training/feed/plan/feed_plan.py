"""What a feed reads, as a small value that ranks receive, a rank's part of it, and positions in its order of rows."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ....errors import FeedError, InvalidArgumentError, LakelensError, VersionFilesMissingError
from ....log.snapshot import DataFiles, Snapshot
from ..read_options import Reading
from .epoch_order import GlobalOrder, RankBatches


@dataclass(frozen=True)
class Position:
    """A position in the order of rows."""

    epoch: int = 0  # The epoch
    row: int = 0  # The global row of that epoch that comes next


def position_of(plan: FeedPlan, position: Mapping[str, Any] | None) -> Position:
    """Reads a position; None is the start of epoch 0."""
    if position is None:
        return Position()
    try:
        epoch, row, order = int(position["epoch"]), int(position["row"]), position.get("order")
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"start={position!r} is not a position; give what feed.position(...) returned"
        ) from error
    if order is not None and order != plan.fingerprint:
        raise InvalidArgumentError(
            f"start={dict(position)!r} belongs to another order than this feed's ({plan.fingerprint}): resume with the "
            "same table, version, split, seed, shuffle, lanes and memory_bytes"
        )
    if epoch < 0 or not 0 <= row <= plan.rows:
        raise InvalidArgumentError(f"start={dict(position)!r}: epoch must be >= 0 and row within 0 to {plan.rows}")
    return Position(epoch, row)


def position_after(
    plan: FeedPlan, start: Mapping[str, Any] | None, steps: int, global_batch_size: int
) -> dict[str, Any]:
    """Gives the position that is reached after a number of global batches."""
    if steps < 0:
        raise InvalidArgumentError(f"steps={steps}: a position lies after none or more batches")
    reached = position_of(plan, start)
    batches = RankBatches(plan.rows, global_batch_size)
    left = batches.steps(reached.row)
    if steps < left:
        reached = Position(reached.epoch, reached.row + steps * global_batch_size)
    else:
        epochs, steps = divmod(steps - left, batches.steps())
        reached = Position(reached.epoch + 1 + epochs, steps * global_batch_size)
    return {"epoch": reached.epoch, "row": reached.row, "order": plan.fingerprint}


# More lanes mix more places of the table into a batch. Powers of two are divided by the usual numbers of ranks, which
# then share no row group.
MAX_LANES = 256
MIN_LANES = 8
# For the sake of more lanes, row groups are read in chunks down to this size; smaller reads would cost too much.
SMALLEST_CHUNK_BYTES = 2 << 20
# A lane that begins in the middle of a row group that is read in chunks has to skip half of it, on average.
GROUPS_PER_CHUNKED_LANE = 2
# A lane holds the row group in use and, from half of it on, the next one.
GROUPS_PER_LANE = 2
DEFAULT_MEMORY_BYTES = 1 << 30
# Counted up whenever the same plan comes to mean another order of rows; positions of another order are refused.
_ORDER_VERSION = 2


@dataclass(frozen=True)
class RowFilter:
    """Keeps the rows whose value in a column is one of some values."""

    column: str  # A column that is stored in the files
    values: tuple[Any, ...]  # The values; None keeps nulls


@dataclass(frozen=True)
class FeedColumns:
    """The columns that have a meaning for a feed of images; None where the table has no such column."""

    image: str | None = None  # Image files or pixels
    label: str | None = None  # Class numbers, or names that `class_numbers` has
    format: str | None = None  # The stored form of the image
    boxes: str = "annotations"  # Annotations; the table need not have it
    sizes: tuple[str, ...] = ()  # Height and width of the image, or empty
    # Numbers of the classes where `label` holds their names; None where it holds numbers
    class_numbers: Mapping[str, int] | None = None

    def of_image(self, image: str) -> list[str]:
        """Lists the columns that describe the images of a column; only tables with a stored form know more of them."""
        return [image] if self.format is None else list(dict.fromkeys((image, self.format, *self.sizes)))


@dataclass(frozen=True)
class FeedPlan:
    """The rows of one version that a feed delivers, and their order. A frozen value: all parts of the feed read it."""

    snapshot: Snapshot  # The version of the table, with the files to read; their `rows` are those that the filters keep
    stored_rows: np.ndarray[Any, np.dtype[np.int64]]  # int64 [files], all rows of each file
    order: GlobalOrder  # The order of the epochs
    columns: FeedColumns = FeedColumns()  # The columns that have a meaning
    filters: tuple[RowFilter, ...] = ()  # What rows of the files are kept; empty keeps all
    chunk_bytes: int = DEFAULT_MEMORY_BYTES  # Uncompressed bytes beyond which a row group is read in chunks
    row_group_bytes: int = 0  # Uncompressed bytes of the largest row group that was seen when the feed was planned
    row_bytes: int = 0  # Uncompressed bytes of a row, on average over the row group that was seen with the largest rows
    table_bytes: int = 0  # Uncompressed bytes of all row groups, estimated when the feed was planned

    @property
    def location(self) -> str:
        """The table's absolute path or URI."""
        return self.snapshot.location

    @property
    def name(self) -> str:
        """Names table and version for a message."""
        return str(self.snapshot.table)

    @property
    def files(self) -> DataFiles:
        """The files to read."""
        return self.snapshot.files

    @property
    def schema(self) -> Mapping[str, str]:
        """Delta type of each column of the table."""
        return self.snapshot.schema

    @property
    def rows(self) -> int:
        """Rows of an epoch."""
        return self.order.rows

    def reading_bytes(self, lanes: int | None = None) -> int:
        """Bytes of row groups that a process holds at most when it reads this number of lanes; by default all of them.

        Rows that are larger than the average of their row group come on top. A chunk is never less than a row.
        """
        chunk_bytes = max(min(self.row_group_bytes, self.chunk_bytes), self.row_bytes)
        held = GROUPS_PER_LANE * (lanes or self.order.lanes) * chunk_bytes
        return min(held, GROUPS_PER_LANE * self.table_bytes)

    @property
    def image_column(self) -> str:
        """Name of the column of images."""
        if self.columns.image is None:
            raise InvalidArgumentError(
                f"the feed of {self.name} gives no images: it was made with image_column=None; name the column of "
                "images there"
            )
        return self.columns.image

    def describe_row(self, file: int, row: int) -> str:
        """Names a stored row for a message."""
        return f"{self.name}: row {row} of {self.file_location(file)}"

    def stored_name(self, column: str) -> str:
        """Gives the name of a column in the files."""
        return self.snapshot.stored_names.get(column, column)

    def file_location(self, file: int) -> str:
        """Gives the absolute path or URI of a file."""
        return self.snapshot.file_location(file)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of everything that the order of rows depends on; positions carry it."""
        order = self.order
        described = [
            _ORDER_VERSION,
            self.snapshot.version,
            order.seed,
            order.shuffle,
            order.lanes,
            self.chunk_bytes,
            len(self.files),
        ]
        digest = hashlib.sha256(json.dumps(described, separators=(",", ":")).encode())
        digest.update(repr([(f.column, _in_order(f.values)) for f in self.filters]).encode())
        digest.update("\n".join(self.files.paths).encode())
        digest.update(np.ascontiguousarray(order.rows_per_file, dtype="<i8").tobytes())
        return digest.hexdigest()[:16]


def _in_order(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Sorts a filter's values, which may come from a set: its order is another one in each process."""
    try:
        return tuple(sorted(values))
    except TypeError:  # null among values, and structs
        return tuple(sorted(values, key=repr))


def chunks_of(rows: int, row_group_bytes: int, chunk_bytes: int) -> int:
    """Counts the chunks that a row group is read in: each holds at most `chunk_bytes` of average rows, or one row."""
    if row_group_bytes <= chunk_bytes or not rows:
        return 1
    return -(-rows // max(1, chunk_bytes * rows // row_group_bytes))


def lanes_within(memory_bytes: int, row_group_bytes: int, table_bytes: int, row_bytes: int = 0) -> tuple[int, int]:
    """Chooses the number of lanes, a power of two, and the bytes beyond which a row group is read in chunks.

    Both depend on the table and the limit alone, not on the number of ranks, so that the order is the same for all.
    """
    if GROUPS_PER_LANE * table_bytes <= memory_bytes:
        return MAX_LANES, memory_bytes
    held = memory_bytes // GROUPS_PER_LANE
    of_whole_groups = held // max(1, row_group_bytes)
    row_groups = table_bytes // max(1, row_group_bytes)
    of_chunks = min(held // SMALLEST_CHUNK_BYTES, row_groups // GROUPS_PER_CHUNKED_LANE)
    of_rows = max(1, held // max(1, row_bytes))
    wanted = min(MAX_LANES, of_rows, max(MIN_LANES, of_whole_groups, of_chunks))
    lanes = 1 << (wanted.bit_length() - 1)
    return lanes, max(1, held // lanes)


@contextmanager
def naming_file(plan: FeedPlan, file: int) -> Iterator[None]:
    """Turns whatever a store raises while a file is read into an error that names the file."""
    location = plan.file_location(file)
    try:
        yield
    except FileNotFoundError as error:
        raise VersionFilesMissingError(
            f"{plan.name}: {location} is gone: VACUUM removed it, or it was deleted by hand. Use a newer version, "
            "restore the file, or pin versions before vacuuming"
        ) from error
    except LakelensError:
        raise
    except Exception as error:  # each store's client has its own exceptions
        raise FeedError(f"{plan.name}: {location} cannot be read: {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class Shard:
    """The rows that one rank reads, batch by batch."""

    plan: FeedPlan  # What is read
    batches: RankBatches  # Which rows of the global order are this rank's
    start: Position  # Where to begin
    epochs: int | None  # How many epochs, the first one counted from `start`; None never ends
    reading: Reading  # How rows are read

    @property
    def steps(self) -> int | None:
        """Batches of all epochs; None if they never end."""
        if self.epochs is None:
            return None
        return self.batches.steps(self.start.row) + (self.epochs - 1) * self.batches.steps()

    def epoch_numbers(self) -> Iterable[int]:
        """Counts the epochs."""
        first = self.start.epoch
        return itertools.count(first) if self.epochs is None else range(first, first + self.epochs)

    def first_row(self, epoch: int) -> int:
        """Gives the global row of an epoch that the shard begins with."""
        return self.start.row if epoch == self.start.epoch else 0
