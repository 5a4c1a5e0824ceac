"""Petastorm's converter without its copy: `make_delta_converter` has the names of what `make_spark_converter` gives."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ...errors import InvalidArgumentError, MissingDependencyError, NotSupportedError
from ...extras import require
from ...options import named_options, near_miss
from .feed import DeltaFeed
from .plan.epoch_order import RankBatches

if TYPE_CHECKING:
    import tensorflow as tf

    from ...etl.image_table import ImageTable
    from .adapters.reader import FeedReader
    from .read_options import ReaderOptions

_BATCH_SIZE = 32
_PREFETCH = 2
# Arguments of make_batch_reader that say how Petastorm goes about it; here they change nothing.
_WITHOUT_EFFECT = frozenset(
    {
        "convert_early_to_numpy",
        "hdfs_driver",
        "reader_pool_type",
        "results_queue_size",
        "shuffle_row_drop_partitions",
        "shuffle_rows",
        "zmq_copy_buffers",
    }
)
_OWN = ("num_epochs", "schema_fields", "cur_shard", "shard_count", "shuffle_row_groups", "seed", "transform_spec")
# Those that change which rows come or where they lie, and what does the same.
_INSTEAD = {
    "predicate": "give filters={column: values} to make_delta_converter",
    "filters": "give filters={column: values} to make_delta_converter",
    "rowgroup_selector": "give filters={column: values} to make_delta_converter",
    "storage_options": "give storage_options to make_delta_converter",
    "filesystem": "give storage_options to make_delta_converter",
    "shard_seed": "give seed",
    "cache_type": "use the dataset's own cache(), or a copy of the table on local disks",
    "cache_location": "use the dataset's own cache(), or a copy of the table on local disks",
    "cache_size_limit": "use the dataset's own cache(), or a copy of the table on local disks",
    "cache_row_size_estimate": "use the dataset's own cache(), or a copy of the table on local disks",
    "cache_extra_settings": "use the dataset's own cache(), or a copy of the table on local disks",
}


class DeltaConverter:
    """One version of a Delta table for TensorFlow and PyTorch, under the names of Petastorm's SparkDatasetConverter.

    It pickles, and holds no rows. `make_delta_converter` makes it.

    Args:
        feed: The version.
        columns: Names of the columns; None is all that have a tensor form.

    Attributes:
        feed: The version.
        dataset_size: Rows of an epoch.
    """

    def __init__(self, feed: DeltaFeed, columns: Sequence[Any] | None = None) -> None:
        self.feed = feed
        self.dataset_size = feed.rows
        self._columns = columns

    def __len__(self) -> int:
        return self.dataset_size

    def __repr__(self) -> str:
        return f"DeltaConverter({self.feed!r})"

    @named_options
    def steps_per_epoch(self, batch_size: int = _BATCH_SIZE, shard_count: int = 1, *, drop_last: bool = True) -> int:
        """Counts the batches of an epoch of one shard.

        Args:
            batch_size: Rows of a batch.
            shard_count: Number of shards.
            drop_last: Whether only whole batches count: these are as many on every shard. Without it, the last batch of
                an epoch counts too, which has fewer rows, and on some shards may have none.
        """
        batches = RankBatches(self.dataset_size, batch_size * shard_count, 0, shard_count)
        return self.dataset_size // batches.batch_size if drop_last else batches.steps()

    def make_tf_dataset(
        self,
        batch_size: int | None = None,
        prefetch: int | None = None,
        num_epochs: int | None = None,
        workers_count: int | None = None,
        shuffling_queue_capacity: int | None = None,
        *,
        schema_fields: Sequence[Any] | None = None,
        cur_shard: int | None = None,
        shard_count: int | None = None,
        shuffle_row_groups: bool = True,
        seed: int | None = None,
        transform_spec: Any = None,
        drop_last: bool = False,
        **options: Any,
    ) -> AbstractContextManager[tf.data.Dataset]:
        """Makes a tf.data.Dataset of named tuples: a context manager that gives it, and ends its reader at the end.

        Args:
            batch_size: Rows of a batch (32). The last batch of an epoch may have fewer.
            prefetch: Batches that are kept ready (2).
            num_epochs: Epochs until the data ends; None never ends.
            workers_count: Threads that transform and decode, as in `DeltaFeed.petastorm_reader`.
            shuffling_queue_capacity: Rows of a further shuffle buffer. Rows are shuffled without it.
            schema_fields: Columns, instead of the converter's.
            cur_shard: This process's shard, such as `hvd.rank()`.
            shard_count: Number of shards, such as `hvd.size()`.
            shuffle_row_groups: False gives the stored order.
            seed: Seed of the order, instead of the converter's.
            transform_spec: As in `DeltaFeed.petastorm_reader`.
            drop_last: Whether the last batch of an epoch that is not whole is left out, so that every shard takes the
                same number of steps.
            **options: `fill`, `reader_threads` and `read_timeout_s` of `DeltaFeed.petastorm_reader`.

        Raises:
            InvalidArgumentError: As by `DeltaFeed.petastorm_reader`.
            NotSupportedError: If an argument of Petastorm's reader is given that has another place here.
        """
        require("make_tf_dataset", "petastorm", "tensorflow")
        rows = _BATCH_SIZE if batch_size is None else batch_size
        reader = self._ordered(seed, shuffle_row_groups).petastorm_reader(
            self._columns if schema_fields is None else schema_fields,
            num_epochs,
            cur_shard,
            shard_count,
            transform_spec,
            **_reader_options(options, batch_size=rows, drop_last=drop_last, workers_count=workers_count),
        )
        return _tf_dataset(
            reader, rows, _PREFETCH if prefetch is None else prefetch, shuffling_queue_capacity, drop_last
        )

    def make_torch_dataloader(
        self,
        batch_size: int = _BATCH_SIZE,
        num_epochs: int | None = None,
        workers_count: int | None = None,
        shuffling_queue_capacity: int = 0,
        data_loader_fn: Callable[..., Any] | None = None,
        *,
        schema_fields: Sequence[Any] | None = None,
        cur_shard: int | None = None,
        shard_count: int | None = None,
        shuffle_row_groups: bool = True,
        seed: int | None = None,
        transform_spec: Any = None,
        drop_last: bool = False,
        **options: Any,
    ) -> AbstractContextManager[Any]:
        """Makes a PyTorch loader: a context manager that gives it, and ends its reader at the end.

        Args:
            batch_size: Rows of a batch.
            num_epochs: Epochs until the data ends; None never ends.
            workers_count: As in `make_tf_dataset`.
            shuffling_queue_capacity: Given to the loader.
            data_loader_fn: Makes the loader from `reader`, `batch_size` and `shuffling_queue_capacity`; by default
                `petastorm.pytorch.DataLoader`. `petastorm.pytorch.BatchedDataLoader` is faster.
            schema_fields: As in `make_tf_dataset`, and all that follow.
            cur_shard: This process's shard.
            shard_count: Number of shards.
            shuffle_row_groups: False gives the stored order.
            seed: Seed of the order.
            transform_spec: As in `DeltaFeed.petastorm_reader`.
            drop_last: Whether the last batch of an epoch that is not whole is left out.
            **options: As in `make_tf_dataset`.

        Raises:
            InvalidArgumentError: As by `DeltaFeed.petastorm_reader`, and if PyTorch has no tensors of a column.
            MissingDependencyError: If PyTorch is not installed.
            NotSupportedError: If an argument of Petastorm's reader is given that has another place here.
        """
        from .adapters.fields import require_torch_types, torch_columns

        wanted = self._columns if schema_fields is None else schema_fields
        reader = self._ordered(seed, shuffle_row_groups).petastorm_reader(
            torch_columns(self.feed.plan, transform_spec) if wanted is None else wanted,
            num_epochs,
            cur_shard,
            shard_count,
            transform_spec,
            **_reader_options(options, batch_size=batch_size, drop_last=drop_last, workers_count=workers_count),
        )
        require_torch_types(reader.schema)
        require("make_torch_dataloader", "torch")
        make = data_loader_fn or _torch_loader()
        return _torch_dataloader(reader, make, batch_size, shuffling_queue_capacity)

    def delete(self) -> None:
        """Removes nothing: there is no copy of the rows."""

    def _ordered(self, seed: int | None, shuffle: bool) -> DeltaFeed:
        return self.feed if seed is None and shuffle else self.feed.reordered(seed, shuffle)


@named_options
def make_delta_converter(
    table: str | Path | ImageTable | DeltaFeed,
    version: int | str | datetime | None = None,
    *,
    split: str | None = None,
    filters: Mapping[str, Any] | None = None,
    columns: Sequence[Any] | None = None,
    seed: int = 0,
    storage_options: Mapping[str, str] | None = None,
) -> DeltaConverter:
    """Opens one version of a Delta table for TensorFlow and PyTorch, instead of Petastorm's `make_spark_converter`.

    Nothing is copied and no Spark session is needed. Any Delta table will do, with or without images.

    Args:
        table: Path or URI of the table, also as `table@version`; an ImageTable; or a DeltaFeed, which has all other
            settings itself.
        version: A number, "latest" or None, a time, or a pin's name.
        split: Value of the column `split` to keep.
        filters: For columns by name, the value, or a list of the values, whose rows are kept.
        columns: Names of the columns; None is all that have a tensor form, as in `DeltaFeed.as_column_dataset`; for
            PyTorch those of numbers, of vectors, and what a transform gives.
        seed: Seed of the order of rows.
        storage_options: Access to an object store, under delta-rs' names.

    Raises:
        InvalidArgumentError: If a DeltaFeed is given with settings that it has itself.
        TableError: Its subclasses, as `DeltaFeed` raises them.
        FeedError: Its subclasses, as `DeltaFeed` raises them.
    """
    if isinstance(table, DeltaFeed):
        given = {"version": version, "split": split, "filters": filters, "storage_options": storage_options}
        taken = [name for name, value in given.items() if value is not None] + (["seed"] if seed else [])
        if taken:
            raise InvalidArgumentError(f"{taken[0]}: {table!r} was made with its own; give it to DeltaFeed")
        return DeltaConverter(table, columns)
    location = table if isinstance(table, (str, Path)) else table.location
    feed = DeltaFeed(
        location,
        version,
        split,
        seed,
        image_column=None,
        label_column=None,
        filters=filters,
        storage_options=storage_options,
    )
    return DeltaConverter(feed, columns)


@named_options
def decode_images(height: int, width: int, *, image_column: str = "image") -> Any:
    """Makes a `petastorm.transform.TransformSpec` that decodes a column of stored images.

    The column comes out as uint8 [height, width, 3], by the decoder that `DeltaFeed.as_dataset` uses; images of another
    size are resized. JPEG, PNG and the other encoded forms, and the `raw_rgb` of image tables.

    Args:
        height: Height in pixels of every image that comes out.
        width: Width in pixels.
        image_column: Name of the column.

    Raises:
        InvalidArgumentError: If a side is not a whole number of at least 1.
        MissingDependencyError: If Petastorm is not installed.
    """
    from .adapters.transforms import ImageDecoding
    from .read_options import image_size_of

    return ImageDecoding(*image_size_of((height, width)), image_column)


@contextmanager
def _tf_dataset(
    reader: FeedReader, batch_size: int, prefetch: int, shuffling_queue_capacity: int | None, drop_last: bool
) -> Iterator[tf.data.Dataset]:
    from petastorm.tf_utils import make_petastorm_dataset

    # A further shuffle makes batches of its own: with drop_last, the rows of the last one are never taken.
    epochs = _PetastormEpochs(reader, batch_size - 1 if shuffling_queue_capacity and drop_last else 0)
    with reader:
        dataset = make_petastorm_dataset(epochs)
        if shuffling_queue_capacity:
            rows = dataset.unbatch().shuffle(shuffling_queue_capacity)
            dataset = rows.batch(batch_size, drop_remainder=drop_last)
        yield dataset.prefetch(prefetch).map(epochs.take)


class _PetastormEpochs:
    """A reader each iteration of which begins with the first epoch that none before it was taken through to its end.

    A row counts as taken when it leaves the pipeline, not when it is read ahead or enters a shuffle queue.

    Args:
        reader: The reader.
        spare: Rows that may be missing from an epoch that was taken.
    """

    ngram = None
    batched_output = True
    last_row_consumed = False  # Petastorm need not reset it

    def __init__(self, reader: FeedReader, spare: int) -> None:
        self.schema = reader.schema
        self._reader = reader
        self._spare = spare
        self._epoch = self._taken = 0

    def __iter__(self) -> Iterator[Any]:
        self._epoch += bisect_right(self._reader.epoch_ends, self._taken + self._spare)
        self._taken = 0
        self._reader.begin(self._epoch)
        yield from self._reader

    def take(self, batch: Any) -> Any:
        """Notes in the pipeline that the rows of a batch are taken; gives the batch."""
        import tensorflow as tf

        rows = tf.shape(tf.nest.flatten(batch)[0], tf.int64)[0]
        with tf.control_dependencies([tf.numpy_function(self._took, [rows], tf.int64)]):
            return tf.nest.map_structure(tf.identity, batch)

    def _took(self, rows: np.int64) -> np.int64:
        self._taken += int(rows)
        return np.int64(self._taken)


@contextmanager
def _torch_dataloader(
    reader: FeedReader, make: Callable[..., Any], batch_size: int, shuffling_queue_capacity: int
) -> Iterator[Any]:
    with reader:
        yield make(reader=reader, batch_size=batch_size, shuffling_queue_capacity=shuffling_queue_capacity)


def _torch_loader() -> Callable[..., Any]:
    try:
        from petastorm.pytorch import DataLoader
    except ImportError as error:
        raise MissingDependencyError(
            f"make_torch_dataloader needs PyTorch, which cannot be imported ({error}): pip install 'lakelens[torch]'"
        ) from error
    loader: Callable[..., Any] = DataLoader
    return loader


def _reader_options(options: Mapping[str, Any], **own: Any) -> ReaderOptions:
    """Checks the other arguments that Petastorm's users give.

    Raises:
        NotSupportedError: If one has another place here.
        InvalidArgumentError: If one is unknown.
    """
    passed_on = ("fill", "reader_threads", "read_timeout_s")
    given = dict(own)
    for name, value in options.items():
        if name in passed_on:
            given[name] = value
        elif name == "cache_type" and value in (None, "null"):
            continue
        elif name in _INSTEAD:
            raise NotSupportedError(f"{name}={value!r}: {_INSTEAD[name]}")
        elif name not in _WITHOUT_EFFECT:
            known = (*passed_on, *own, *_OWN)
            raise InvalidArgumentError(f"{name}={value!r}: there is no such argument{near_miss(name, known)}")
    return cast("ReaderOptions", given)
