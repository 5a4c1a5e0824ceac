"""The feed behind the contract of Petastorm's Reader: an iterator of named tuples of arrays, a shard of every epoch."""

from __future__ import annotations

import os
import threading
import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ....errors import FeedError, InvalidArgumentError, NotSupportedError
from ..columns import Columns, column_array, filling_of
from ..plan.epoch_order import RankBatches
from ..plan.feed_plan import FeedPlan, Position, Shard
from ..plan_builder import require_images
from ..rank_batches import BatchBuffers, BatchReader, RowBatch
from ..read_options import ReaderOutput
from ..tf_pipeline import dataset_of
from .fields import as_tensors, as_vectors, length_of, matching_columns, schema_of, tensor_specs
from .transforms import ImageDecoding, apply_transform

if TYPE_CHECKING:
    import tensorflow as tf

# Without a batch size, an item has this number of bytes of a shard's rows: enough to hide what an item costs in Python.
_ITEM_BYTES = 16 << 20
_MOST_ROWS = 1024
# Variables by which launchers give the number of processes: Horovod's, and torchrun's, which TorchDistributor uses.
_WORLD_SIZES = ("HOROVOD_SIZE", "WORLD_SIZE")


class FeedReader:
    """One shard of a feed's epochs; `DeltaFeed.petastorm_reader` makes it and describes the arguments.

    Safe to iterate in one thread and to stop in another. It reads from the first `next` on.

    Attributes:
        schema: Petastorm's Unischema of what comes out.
        ngram: None.
        batched_output: True: every item holds many rows.
        num_epochs: Epochs until the data ends; None never ends.
        last_row_consumed: Whether the data has ended; `reset` continues with the epochs that follow.
        stopped: Whether `stop` was called.
    """

    ngram = None
    batched_output = True
    is_batched_reader = True

    def __init__(self, plan: FeedPlan, shard: int, shards: int, output: ReaderOutput) -> None:
        self._plan = plan
        self._output = output
        self._transform = output.transform_spec
        columns = matching_columns(plan, output.columns, self._transform)
        self._stored, self.schema = schema_of(plan, columns, self._transform)
        self._decoding = self._transform if isinstance(self._transform, ImageDecoding) else None
        read = list(columns)
        if self._decoding is not None:
            if self._decoding.image_column not in columns:
                raise InvalidArgumentError(
                    f"decode_images: column {self._decoding.image_column!r} is not one of the columns "
                    f"{', '.join(columns)}"
                )
            require_images(plan.name, plan.schema, self._decoding.image_column)
            read = list(dict.fromkeys([*read, *plan.columns.of_image(self._decoding.image_column)]))
        self._read = read
        self._fill = filling_of(plan, output.fill)
        rows = output.batch_size or self._rows_of_an_item()
        self.batches = _batches_of(plan, rows, shard, shards, output.drop_last)
        shape = (rows, *self._decoding.shape) if self._decoding is not None else (0,)
        self._buffers = BatchBuffers(shape, "uint8")
        self.num_epochs = output.epochs
        self._epoch = 0
        self.last_row_consumed = False
        self.stopped = False
        self._failed = False
        self._ahead: deque[Future[Columns]] = deque()
        self._items: Iterator[Columns] | None = None
        self._lock = threading.Lock()

    @property
    def bytes_held(self) -> int:
        """Bytes of items that are in memory at once: being made, waiting, and in use."""
        return (self._output.threads + 2) * self.batches.most_rows * self._row_bytes()

    def __iter__(self) -> FeedReader:
        return self

    def __next__(self) -> Any:
        with self._lock:
            if self.stopped or self._failed:
                why = "was stopped" if self.stopped else "has failed before"
                raise FeedError(f"the reader of {self._plan.location} {why}; make a new one with petastorm_reader")
            if self._items is None:
                self._items = self._items_of(self._shard_from(self._epoch))
            try:
                item = next(self._items)
            except StopIteration:
                self.last_row_consumed = True
                raise
            except BaseException:
                self._failed = True  # the next call would find the end of the data
                raise
            return self.schema.make_namedtuple(**item)

    next = __next__

    def reset(self) -> None:
        """Continues with the epochs that follow, once the data has ended.

        Raises:
            NotSupportedError: If it has not.
        """
        if not self.last_row_consumed or self.num_epochs is None:
            raise NotSupportedError(
                "reset: the data has not ended; a reader is reset after its last row, make a new one instead"
            )
        self._begin(self._epoch + self.num_epochs)

    def as_dataset(self, prefetch: int) -> tf.data.Dataset:
        """Gives the items as a tf.data.Dataset of named tuples, of Petastorm's types.

        Iterating again begins with the first epoch that was not taken to its end, as in `DeltaFeed.as_dataset`. The
        dataset and `next` take from the same reader: use one of them. `prefetch` items are kept ready.
        """

        def items(shard: Shard) -> Iterator[Any]:
            self._begin(shard.start.epoch)
            return (as_tensors(item, self.schema) for item in self)

        shard = replace(self._shard_from(0), reading=replace(self._output, prefetch=prefetch))
        return dataset_of(shard, tensor_specs(self.schema), items)

    def _shard_from(self, epoch: int) -> Shard:
        return Shard(self._plan, self.batches, Position(epoch), self.num_epochs, self._output)

    def _begin(self, epoch: int) -> None:
        """Starts again with an epoch, wherever the reader is."""
        with self._lock:
            self._close_items()
            self._epoch = epoch
            self.last_row_consumed = False

    def stop(self) -> None:
        """Ends the reading; `join` waits for it."""
        self.stopped = True

    def join(self) -> None:
        """Waits until an item that is being made is done, and ends the threads."""
        self.stopped = True
        with self._lock:
            self._close_items()

    def _close_items(self) -> None:
        if self._items is not None:
            self._items.close()  # type: ignore[attr-defined]
            self._items = None

    def __enter__(self) -> FeedReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.join()

    def _items_of(self, shard: Shard) -> Iterator[Columns]:
        """Yields the columns of each batch, the next ones being made in threads meanwhile."""
        with BatchReader(shard, self._read) as reader:
            pool = ThreadPoolExecutor(self._output.threads, thread_name_prefix="lakelens-transform")

            def submit(batch: RowBatch) -> Future[Columns]:
                return pool.submit(self._item, batch)

            try:
                # Not a loop, whose variable would keep the last batch while the next one is waited for.
                for made in map(submit, reader):
                    self._ahead.append(made)
                    if len(self._ahead) > self._output.threads:
                        yield self._ahead.popleft().result()
                while self._ahead:
                    yield self._ahead.popleft().result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
                self._ahead.clear()

    def _item(self, padded: RowBatch) -> Columns:
        """Makes the columns of some rows; padding is left out."""
        count = padded.real
        batch = RowBatch(padded.groups[:count], padded.rows[:count], padded.weights[:count], count)
        decoding = self._decoding
        decoded = decoding.image_column if decoding is not None else None
        columns = {
            name: self._column(batch, name, field) for name, field in self._stored.fields.items() if name != decoded
        }
        if decoding is not None:
            pixels = self._buffers.take()[:count]
            origins = batch.origins()
            decoding.decode(
                batch.images(self._plan.columns, decoding.image_column, self._read),
                pixels,
                lambda row: self._plan.describe_row(*origins[row].tolist()),
            )
            columns[decoding.image_column] = pixels
        elif self._transform is not None:
            columns = apply_transform(self._transform, columns, self.schema)
        return columns

    def _column(self, batch: RowBatch, name: str, field: Any) -> Any:
        array = column_array(self._plan, batch, name, self._fill)
        if field.numpy_dtype is np.str_ and not field.shape and array.dtype == object:
            # Objects, not NumPy's text, which cuts trailing zeros and makes each row as wide as the longest.
            array[:] = [str(value) for value in array]
        if not field.shape:
            return array
        lengths = [length_of(value) for value in array]
        if None not in lengths and len(set(lengths)) <= 1:
            return as_vectors(array.tolist(), field.numpy_dtype)
        if self._transform is not None and self._transform.func is not None and self._decoding is None:
            for row, value in enumerate(array):
                array[row] = _vector_of(value, field.numpy_dtype)
            return array
        row = next(row for row, length in enumerate(lengths) if length is None or length != lengths[0])
        what = f"an array of length {lengths[row]}, others have {lengths[0]}"
        if lengths[row] is None:
            what = "null" if array[row] is None else "an array with a null"
        raise InvalidArgumentError(
            f"column {name!r} of {self._plan.describe_row(*batch.origins()[row].tolist())} holds {what}, and a tensor "
            "has one length and no null: leave the column out, make its arrays equal in a transform_spec, or give what "
            f"stands for a null array: fill={{{name!r}: [...]}}"
        )

    def _row_bytes(self) -> int:
        """Bytes of a row, on average: as it is stored, and its arrays of known shape."""
        shaped = sum(
            int(np.prod(field.shape)) * np.dtype(field.numpy_dtype).itemsize
            for field in self.schema.fields.values()
            if field.shape and None not in field.shape
        )
        return int(max(1, self._plan.row_bytes + shaped))

    def _rows_of_an_item(self) -> int:
        return min(_MOST_ROWS, max(1, _ITEM_BYTES // self._row_bytes()))


def _vector_of(value: Any, kind: Any) -> Any:
    """Gives a transform one array of several lengths; None for null, and an array of objects with a null."""
    return None if value is None else as_vectors(value, np.str_ if None in value else kind)


def shard_of(cur_shard: int | None, shard_count: int | None) -> tuple[int, int]:
    """Checks a shard and the number of shards; neither means all rows."""
    if cur_shard is None and shard_count is None:
        sizes = {name: os.environ.get(name) for name in _WORLD_SIZES}
        running = [f"{name}={size}" for name, size in sizes.items() if size and size != "1"]
        if running:
            warnings.warn(
                f"{running[0]}, and no cur_shard and shard_count are given: every process reads all rows; give "
                "cur_shard its rank and shard_count the number of processes",
                stacklevel=3,
            )
        return 0, 1
    if cur_shard is None or shard_count is None:
        raise InvalidArgumentError(f"cur_shard={cur_shard}, shard_count={shard_count}: give both or neither")
    whole = all(isinstance(value, (int, np.integer)) for value in (cur_shard, shard_count))
    if not whole or not 0 <= cur_shard < shard_count:
        raise InvalidArgumentError(
            f"cur_shard={cur_shard!r}, shard_count={shard_count!r}: shards are whole numbers from 0 to shard_count - 1"
        )
    return int(cur_shard), int(shard_count)


def _batches_of(plan: FeedPlan, batch_size: int, shard: int, shards: int, drop_last: bool) -> RankBatches:
    """Divides an epoch into a shard's batches; a last one that is dropped, or has no row of this shard, is left out."""
    if shards > plan.rows:
        raise InvalidArgumentError(
            f"shard_count={shards}: {plan.name} has {plan.rows} rows for it, so that some "
            "shards would be empty; give fewer shards"
        )
    left = plan.rows % (batch_size * shards)
    rows = plan.rows - left if drop_last or left <= shard else plan.rows
    if not rows:
        raise InvalidArgumentError(
            f"drop_last=True: batch_size={batch_size} on {shards} shards is more than the {plan.rows} "
            f"rows of {plan.name}, so that no batch is left; give a smaller batch_size"
        )
    return RankBatches(rows, batch_size * shards, shard, shards)
