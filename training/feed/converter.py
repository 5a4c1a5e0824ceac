"""Petastorm's converter without its copy: `make_delta_converter` has the names of what `make_spark_converter` gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InvalidArgumentError, MissingDependencyError, NotSupportedError
from ...extras import require
from ...options import check_names, named_options
from .feed import DeltaFeed
from .plan.epoch_order import RankBatches
from .read_options import ConverterOptions

if TYPE_CHECKING:
    import tensorflow as tf
    from typing_extensions import Unpack

    from ...etl.image_table import ImageTable
    from .adapters.reader import FeedReader

_BATCH_SIZE = 32
_PREFETCH = 2
# Arguments of make_batch_reader that control how Petastorm reads; here they change nothing.
_WITHOUT_EFFECT = (
    "convert_early_to_numpy",
    "hdfs_driver",
    "reader_pool_type",
    "results_queue_size",
    "shuffle_row_drop_partitions",
    "shuffle_rows",
    "zmq_copy_buffers",
)
_BY_FILTERS = "give filters={column: values} to make_delta_converter"
_BY_STORAGE_OPTIONS = "give storage_options to make_delta_converter"
_BY_CACHE = "use the dataset's own cache(), or a copy of the table on local disks"
# Those that change which rows come or where they lie, and what does the same.
_INSTEAD = {
    "predicate": _BY_FILTERS,
    "filters": _BY_FILTERS,
    "rowgroup_selector": _BY_FILTERS,
    "storage_options": _BY_STORAGE_OPTIONS,
    "filesystem": _BY_STORAGE_OPTIONS,
    "shard_seed": "give seed",
    "cache_type": _BY_CACHE,
    "cache_location": _BY_CACHE,
    "cache_size_limit": _BY_CACHE,
    "cache_row_size_estimate": _BY_CACHE,
    "cache_extra_settings": _BY_CACHE,
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
        if columns is not None:
            try:
                from .adapters.fields import matching_columns
            except ImportError:  # without Petastorm, of which the methods speak
                return
            matching_columns(feed.plan, columns)

    def __len__(self) -> int:
        return self.dataset_size

    def __repr__(self) -> str:
        return f"DeltaConverter({self.feed!r})"

    @named_options
    def steps_per_epoch(self, batch_size: int = _BATCH_SIZE, shard_count: int = 1, *, drop_last: bool = True) -> int:
        """Counts the batches of an epoch of one shard.

        Args:
            batch_size: Rows of a batch of one process, as in Petastorm.
            shard_count: Number of shards.
            drop_last: Whether only whole batches count: these are as many on every shard. Without it, the last batch of
                an epoch counts too, which has fewer rows, and on some shards may have none.
        """
        batches = RankBatches(self.dataset_size, batch_size * shard_count, 0, shard_count)
        return self.dataset_size // batches.global_batch_size if drop_last else batches.steps()

    def make_tf_dataset(
        self,
        batch_size: int | None = None,
        prefetch: int | None = None,
        num_epochs: int | None = None,
        workers_count: int | None = None,
        shuffling_queue_capacity: int | None = None,
        **options: Unpack[ConverterOptions],
    ) -> AbstractContextManager[tf.data.Dataset]:
        """Makes a tf.data.Dataset of named tuples: a context manager that gives it, and ends its reader at the end.

        Args:
            batch_size: Rows of a batch of this process (32), as in Petastorm. The last batch of an epoch may
                have fewer.
            prefetch: Batches that are kept ready (2).
            num_epochs: Epochs until the data ends; None never ends.
            workers_count: Threads that transform and decode, as in `DeltaFeed.petastorm_reader`.
            shuffling_queue_capacity: Changes nothing: rows are mixed already, from up to 256 places of the table.
            **options: Arguments of Petastorm's reader. Those that have no effect here, such as `reader_pool_type`, are
                accepted too.

                schema_fields: Columns, instead of the converter's.
                cur_shard: This process's shard, such as `hvd.rank()`.
                shard_count: Number of shards, such as `hvd.size()`.
                shuffle_row_groups: False gives the stored order.
                seed: Seed of the order, instead of the converter's.
                transform_spec: As in `DeltaFeed.petastorm_reader`.
                drop_last: Whether the last batch of an epoch that is not whole is left out, so that every shard takes
                    the same number of steps.
                fill: As in `DeltaFeed.petastorm_reader`, and so `reader_threads` and `read_timeout_s`.

        Raises:
            InvalidArgumentError: As by `DeltaFeed.petastorm_reader`; if a queue is to shuffle the stored order.
            NotSupportedError: If the call has an argument of Petastorm's reader that belongs elsewhere here.
        """
        require("make_tf_dataset", "petastorm", "tensorflow")
        feed, given = self._ordered(options)
        if shuffling_queue_capacity and not feed.plan.order.shuffle:
            raise InvalidArgumentError(
                f"shuffling_queue_capacity={shuffling_queue_capacity}: this is the stored order, which no queue "
                "shuffles; leave out shuffle_row_groups=False, or shuffle the dataset"
            )
        rows = _BATCH_SIZE if batch_size is None else batch_size
        reader = feed.petastorm_reader(num_epochs=num_epochs, batch_size=rows, workers_count=workers_count, **given)
        return _tf_dataset(reader, _PREFETCH if prefetch is None else prefetch)

    def make_torch_dataloader(
        self,
        batch_size: int = _BATCH_SIZE,
        num_epochs: int | None = None,
        workers_count: int | None = None,
        shuffling_queue_capacity: int = 0,
        data_loader_fn: Callable[..., Any] | None = None,
        **options: Unpack[ConverterOptions],
    ) -> AbstractContextManager[Any]:
        """Makes a PyTorch loader: a context manager that gives it, and ends its reader at the end.

        Args:
            batch_size: Rows of a batch of one process, as in Petastorm.
            num_epochs: Epochs until the data ends; None never ends.
            workers_count: As in `make_tf_dataset`.
            shuffling_queue_capacity: Given to the loader.
            data_loader_fn: Makes the loader from `reader`, `batch_size` and `shuffling_queue_capacity`; by default
                `petastorm.pytorch.DataLoader`. `petastorm.pytorch.BatchedDataLoader` is faster.
            **options: As in `make_tf_dataset`.

        Raises:
            InvalidArgumentError: As by `DeltaFeed.petastorm_reader`, and if PyTorch has no tensors of a column.
            MissingDependencyError: If PyTorch is not installed.
            NotSupportedError: If the call has an argument of Petastorm's reader that belongs elsewhere here.
        """
        from .adapters.fields import require_torch_types, torch_columns

        feed, given = self._ordered(options)
        if given["columns"] is None:
            given["columns"] = torch_columns(feed.plan, given.get("transform_spec"))
        reader = feed.petastorm_reader(
            num_epochs=num_epochs, batch_size=batch_size, workers_count=workers_count, **given
        )
        require_torch_types(reader.schema)
        require("make_torch_dataloader", "torch")
        make = data_loader_fn or _torch_loader()
        return _torch_dataloader(reader, make, batch_size, shuffling_queue_capacity)

    def delete(self) -> None:
        """Removes nothing, because the rows are not copied."""

    def _ordered(self, options: ConverterOptions) -> tuple[DeltaFeed, dict[str, Any]]:
        """Gives the feed in the order that was asked for, and the other arguments of its `petastorm_reader`."""
        given = _without_petastorms_own(options)
        seed, shuffle = given.pop("seed", None), given.pop("shuffle_row_groups", True)
        fields = given.pop("schema_fields", None)
        given["columns"] = self._columns if fields is None else fields
        return self.feed if seed is None and shuffle else self.feed.reordered(seed, shuffle), given


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
        columns: Names of the columns; None is all that have a tensor form, as in `DeltaFeed.petastorm_reader`; for
            PyTorch those of numbers, of vectors, and what a transform gives.
        seed: Seed of the order of rows.
        storage_options: Access to an object store, under delta-rs' names.

    Raises:
        InvalidArgumentError: If the call repeats settings of its DeltaFeed.
        TableError: Its subclasses, as `DeltaFeed` raises them.
        FeedError: Its subclasses, as `DeltaFeed` raises them.

    Examples:
        >>> converter = lakelens.make_delta_converter("tables/photos@0")
        >>> len(converter)
        60
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

    Examples:
        >>> spec = lakelens.decode_images(32, 32)
        >>> converter = lakelens.make_delta_converter("tables/photos@0")
        >>> with converter.make_tf_dataset(batch_size=16, transform_spec=spec) as dataset:
        ...     next(iter(dataset)).image.shape
        TensorShape([16, 32, 32, 3])
    """
    from .adapters.transforms import ImageDecoding
    from .read_options import image_size_of

    return ImageDecoding(*image_size_of((height, width)), image_column)


@contextmanager
def _tf_dataset(reader: FeedReader, prefetch: int) -> Iterator[tf.data.Dataset]:
    with reader:
        yield reader.as_dataset(prefetch)


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


def _without_petastorms_own(options: Mapping[str, Any]) -> dict[str, Any]:
    """Checks the other arguments that Petastorm's users pass, and leaves out those that have no effect here."""
    given = {name: value for name, value in options.items() if name not in _WITHOUT_EFFECT}
    if given.get("cache_type") in (None, "null"):
        given.pop("cache_type", None)
    for name, instead in _INSTEAD.items():
        if name in given:
            raise NotSupportedError(f"{name}={given[name]!r}: {instead}")
    own = ("batch_size", "num_epochs", "workers_count", "shuffling_queue_capacity")
    check_names("DeltaConverter", given, (*ConverterOptions.__annotations__, *own))
    return given
