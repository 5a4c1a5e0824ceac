"""DeltaFeed: one pinned version of a Delta table as batches for training, every row exactly once per epoch."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InvalidArgumentError, NotAnImageTableError
from ...etl.model.classes import LABELS_PROPERTY
from ...etl.model.schema import HEIGHT, WIDTH
from ...etl.spark.catalog import sql_name
from ...etl.versions.changes import labels_at
from ...extras import require
from ...log.delta_types import INTEGERS, type_name
from ...log.snapshot import Snapshot, open_snapshot
from ...options import named_options, whole_number
from ...stores.watched import STALL_TIMEOUT_S, watched
from ...table import Table
from .image_plan import ImagePlan, LeftOutBoxes, SkippedRows, size_of_first_image
from .plan.epoch_order import RankBatches, lanes_of_rank
from .plan.feed_plan import DEFAULT_MEMORY_BYTES, FeedColumns, Shard, position_after, position_of
from .plan_builder import make_plan, require_column, require_images
from .read_options import (
    ColumnOptions,
    ColumnOutput,
    ImageOptions,
    ImageOutput,
    ReaderOptions,
    ReaderOutput,
    Reading,
    image_size_of,
)

if TYPE_CHECKING:
    import tensorflow as tf
    from typing_extensions import Unpack

    from .adapters.reader import FeedReader
    from .image_batches import ImageBatches
    from .torch_batches import TorchBatches


class DeltaFeed:
    """One version of a Delta table as a feed of images, labels and weights.

    The version, its files and their row counts are resolved once, where the feed is built, without a JVM; the feed
    pickles, and ranks that receive it never list or read the log. No copy of the table is made.

    Args:
        location: Path or URI of the table; `table@version` names the version too.
        version: A number, "latest" or None, a time, or a pin's name.
        split: Value of the split column to keep; None keeps all rows.
        seed: Seed of the order of rows.
        shuffle: Whether each epoch has a different order; False is the stored order.
        image_column: Name of the column of image bytes; None for a table without images, whose columns are fed.
        label_column: Name of the column of class numbers, or of class names that the table's property `lakelens.labels`
            numbers; None feeds zeros.
        split_column: Name of the column that `split` is looked up in.
        format_column: Name of the column with the stored form (`jpeg`, `png`, `raw_rgb`), if the table has it.
        boxes_column: Name of the column of annotations: an array of structs with label, xmin, ymin, xmax and ymax.
        filters: For columns by name, the value, or a list of the values, whose rows are kept; None is null. Filters on
            partition columns cost nothing; others read their column once, where the feed is built.
        lanes: Number of row groups that rows are mixed from; by default the power of two that `memory_bytes` holds.
        memory_bytes: Limit for the row groups that one process holds, in rows of average size; it is two rows at least.
        storage_options: Access to an object store, under delta-rs' names.
        stall_timeout_s: Seconds without an answer of the store after which that is an error, here.

    Raises:
        NotADeltaTableError: If `location` does not hold a table.
        VersionNotFoundError: If the table has no such version.
        UnsupportedTableFeatureError: If the version needs a feature that is not known here.
        NotAnImageTableError: If a column is missing, or has a type that cannot hold images or classes.
        EmptyFeedError: If the version or the split holds no rows.
        InvalidArgumentError: If `split` and `filters` both choose by the split column, or an argument is outside its
            range.
        VersionFilesMissingError: If data files of the version are gone.
        FeedStalledError: If the store does not answer.

    Examples:
        >>> feed = lakelens.DeltaFeed("tables/photos@0", split="train")
        >>> images, labels, weights = next(iter(feed.as_numpy(16)))
        >>> images.shape, labels.shape
        ((16, 32, 32, 3), (16,))
    """

    @named_options
    def __init__(
        self,
        location: str | Path,
        version: int | str | datetime | None = None,
        split: str | None = None,
        seed: int = 0,
        shuffle: bool = True,
        *,
        image_column: str | None = "image",
        label_column: str | None = "label",
        split_column: str = "split",
        format_column: str = "format",
        boxes_column: str = "annotations",
        filters: Mapping[str, Any] | None = None,
        lanes: int | None = None,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        storage_options: Mapping[str, str] | None = None,
        stall_timeout_s: float = STALL_TIMEOUT_S,
    ) -> None:
        table, seed = Table.of(location, version, storage_options), whole_number("seed", seed)
        snapshot = watched(partial(open_snapshot, table), f"the log of {table}", stall_timeout_s)
        if image_column is not None:
            require_column(snapshot, image_column, "image_column")
            require_images(f"{snapshot.location}@{snapshot.version}", snapshot.schema, image_column)
        numbers = None if label_column is None else _class_numbers(snapshot, label_column)
        if split is not None:
            require_column(snapshot, split_column, "split_column")
            if filters is not None and split_column in filters:
                raise InvalidArgumentError(
                    f"split={split!r} and filters={{{split_column!r}: {filters[split_column]!r}}} both choose by "
                    f"column {split_column!r}; give one of them"
                )
        self.split = split
        self.skipped = SkippedRows()
        self.left_out = LeftOutBoxes()
        self._equal_weights = False
        self._reported: set[str] = set()
        has_sizes = all(snapshot.schema.get(name) in INTEGERS for name in (HEIGHT, WIDTH))
        self.plan = make_plan(
            snapshot,
            {**({split_column: split} if split is not None else {}), **(filters or {})},
            FeedColumns(
                image=image_column,
                label=label_column,
                format=format_column if format_column in snapshot.schema else None,
                boxes=boxes_column,
                sizes=(HEIGHT, WIDTH) if has_sizes else (),
                class_numbers=numbers,
            ),
            seed=seed,
            shuffle=shuffle,
            lanes=lanes,
            memory_bytes=memory_bytes,
            timeout_s=stall_timeout_s,
        )

    def __repr__(self) -> str:
        split = f", split={self.split!r}" if self.split is not None else ""
        return f"DeltaFeed({self.location!r}, version={self.version}{split}, rows={self.rows})"

    @property
    def location(self) -> str:
        """The table's absolute path or URI."""
        return self.plan.location

    @property
    def version(self) -> int:
        """The version's number, also when a time, a pin or the latest was asked for."""
        return self.plan.snapshot.version

    @property
    def rows(self) -> int:
        """Rows of an epoch."""
        return self.plan.rows

    @cached_property
    def _labels(self) -> Mapping[str, int]:
        return labels_at(open_snapshot(self.plan.snapshot.table))

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes by their numbers, if the table knows them; "" for a number without a name."""
        if not self._labels:
            return None
        names = [""] * (max(self._labels.values()) + 1)
        for name, number in self._labels.items():
            names[number] = name
        return names

    @cached_property
    def stored_size(self) -> tuple[int, int]:
        """Height and width of the first image of the feed's rows, in pixels.

        Raises:
            BadRowError: If none of the first rows of each file has a size.
        """
        return size_of_first_image(self.plan)

    @named_options
    def reordered(self, seed: int | None = None, shuffle: bool = True) -> DeltaFeed:
        """Gives the same rows in another order.

        Args:
            seed: Seed of the order; None is this feed's.
            shuffle: False is the stored order.
        """
        order = self.plan.order
        lanes = order.lanes if shuffle else 1
        seed = order.seed if seed is None else whole_number("seed", seed)
        other = copy(self)
        other.plan = replace(self.plan, order=replace(order, seed=seed, lanes=lanes, shuffle=shuffle))
        return other

    def with_equal_weights(self) -> DeltaFeed:
        """Gives the same rows, each with weight 1 on any number of ranks; rows that fill a batch keep weight 0.

        A Trial's context has such feeds: the training step that lakelens compiles counts the real rows of all ranks.
        """
        other = copy(self)
        other._equal_weights = True  # noqa: SLF001
        return other

    @named_options
    def steps_per_epoch(self, global_batch_size: int, size: int | None = None) -> int:
        """Counts the batches of one epoch: the same on every rank, whatever their number.

        Args:
            global_batch_size: Rows of a global batch.
            size: Number of ranks; it changes nothing and is there for symmetry with `as_dataset`.
        """
        return RankBatches(self.rows, global_batch_size, 0, size or 1).steps()

    @named_options
    def position(self, steps: int, global_batch_size: int, start: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Gives the place in the order of rows that is reached after a number of batches.

        Args:
            steps: Batches taken since `start`.
            global_batch_size: Rows of a global batch.
            start: Position to count from; None is the start of epoch 0.

        Returns:
            A small JSON value for `as_dataset(start=...)`: from there exactly the remaining rows follow.
        """
        return position_after(self.plan, start, steps, global_batch_size)

    @named_options
    def as_dataset(
        self,
        global_batch_size: int,
        rank: int | None = None,
        size: int | None = None,
        epochs: int | None = 1,
        **options: Unpack[ImageOptions],
    ) -> tf.data.Dataset:
        """Gives this rank's batches as a tf.data.Dataset of (images, labels, weights).

        `images` is [rows, height, width, 3] with values 0 to 255, `labels` int32 [rows], `weights` float32 [rows].

        One process (`size=1`) gets every row once and no padding; the last batch of an epoch is shorter. Give such a
        dataset to `model.fit`, `validation_data` and `model.evaluate`: loss and metrics are those of the rows.

        With several ranks, all of them get ceil(n / size) rows of a batch of n rows, so that they take the same steps.
        A row that fills up has weight 0; the other rows are weighted so that the mean of the ranks' losses and
        gradients is that of one process on the whole batch. Keras counts the rows of weight 0, at most one per batch
        and rank, in `metrics` (not in `weighted_metrics`), so evaluate in one process.

        Iterating again continues with the next epoch's order, as `fit(dataset, epochs=10)` does: each iteration begins
        with the first epoch that no iteration before it has completed. With `start`, every iteration begins there: to
        resume a training, let one iteration go through the remaining `epochs`, and give fit `steps_per_epoch`.

        Args:
            global_batch_size: Rows of a global batch, all ranks together.
            rank: This rank; by default that of the running Horovod job, 0 outside one.
            size: Number of ranks; by default that of the running Horovod job, 1 outside one.
            epochs: Epochs that one iteration goes through; None never ends.
            **options: What comes out, and how it is read.

                image_size: Height and width that images are resized to; by default they have the size of the first one.
                start: Where every iteration begins: what `position` returned.
                replicas: Devices of this process that share each batch, as in tf.distribute: each rank gets a multiple
                    of this number of rows, filled up in the same way.
                preprocess: Called with (images, labels) of a batch inside the pipeline; returns both.
                dtype: `float32` or `uint8`.
                letterbox: Whether images of other proportions than `image_size` keep theirs, in the middle of white; by
                    default each side is scaled.
                seeded: Whether `preprocess` gets a third argument, an int32 pair for `tf.random.stateless_uniform` that
                    differs by batch, epoch and rank, and is the same for the same `seed` and after a resume.
                box_classes: Number of classes of boxes. When given, labels are one array instead, float32 [rows, boxes,
                    6]: xmin, ymin, xmax, ymax in pixels of the image that comes out, class number, and 1 for a
                    difficult one; as many boxes as the row of the batch with most has, filled up with class -1. Boxes
                    are cut at the image's edges; those narrower or lower than a pixel are left out and counted in
                    `left_out`, and so is a row whose boxes are null. A row whose boxes are not finite, inverted,
                    outside the image or of another class is a bad row.
                box_limit: Most boxes of a row in that array (200); the smallest beyond it are left out and counted.
                bad_rows: `error` stops at a row that does not decode, or whose label is null or no int32, and names it.
                    `skip` logs it, counts it in `skipped`, and leaves it out of its batch; with several ranks, or in a
                    batch of bad rows only, it stays with weight 0.
                decode_threads: Threads that decode; by default one per core, divided by the ranks of this machine.
                reader_threads: Threads that read row groups (4).
                read_timeout_s: Seconds after which a read that has not answered is an error (45).
                prefetch: Batches that are kept ready (2).
                cache: Whether to keep the decoded images, uint8 at the size that comes out, in a memory-mapped file on
                    local disk; True is `~/.cache/lakelens/decoded`, or name a folder. The first call decodes all rows
                    before it returns; ranks, trials and later runs of the same version, split and size share the file.
                    Order, rows, pixels and weights are those without it.
                cache_bytes: Most bytes of all files in the folder (64 GiB); those used longest ago are removed.

        Raises:
            InvalidArgumentError: If an argument is outside its range, or `start` belongs to another order.
        """
        require("DeltaFeed.as_dataset", "tensorflow")
        return self._images(global_batch_size, rank, size, epochs, ImageOutput(**options)).as_dataset()

    @named_options
    def as_numpy(
        self,
        global_batch_size: int,
        rank: int | None = None,
        size: int | None = None,
        epochs: int | None = 1,
        **options: Unpack[ImageOptions],
    ) -> Iterator[tuple[Any, Any, Any]]:
        """Gives what `as_dataset` gives as an iterator of NumPy arrays; TensorFlow is not imported.

        It goes through `epochs` once. Close it, or let it go, to end its threads before its end. Arguments are those of
        `as_dataset`.

        Raises:
            InvalidArgumentError: If an argument is outside its range, or `start` belongs to another order.
            FeedError: Its subclasses, while iterating.
        """
        return self._images(global_batch_size, rank, size, epochs, ImageOutput(**options)).as_arrays()

    @named_options
    def as_torch(
        self,
        global_batch_size: int,
        rank: int | None = None,
        size: int | None = None,
        epochs: int | None = 1,
        *,
        layout: str = "NCHW",
        pin_memory: bool = False,
        **options: Unpack[ImageOptions],
    ) -> TorchBatches:
        """Gives what `as_dataset` gives as an iterable of PyTorch tensors (images, labels, weights).

        `images` are uint8 unless `dtype` differs, `labels` int64. Threads of this process decode the next batches; no
        worker processes are needed. Iterating again continues with the next epoch, as in `as_dataset`.

        `state_dict()` gives the place after the last batch, a small JSON value, and `load_state_dict(state)` lets the
        next iteration continue there: in the middle of an epoch, at any number of ranks, with every row once.

        Args:
            global_batch_size: Rows of a global batch, all ranks together.
            rank: This rank; by default that of the process group of torch.distributed, else as in `as_dataset`.
            size: Number of ranks, by default as `rank`.
            epochs: Epochs that one iteration goes through; the rest of an epoch counts as one. None never ends.
            layout: `NCHW`, in memory channels_last, or `NHWC`.
            pin_memory: Whether tensors lie in page-locked memory, from which copies to a GPU are asynchronous.
            **options: As in `as_dataset`; `preprocess` gets tensors, `start` is where the first iteration begins, and
                `seeded` changes nothing.

        Raises:
            InvalidArgumentError: If an argument is outside its range, or `start` belongs to another order.
            FeedError: Its subclasses, while iterating.
            MissingDependencyError: If PyTorch is not installed.
        """
        require("DeltaFeed.as_torch", "torch")
        from .torch_batches import TorchBatches, running_rank_and_size

        if rank is None and size is None:
            rank, size = running_rank_and_size() or (None, None)
        options.setdefault("dtype", "uint8")
        output = ImageOutput(**options)
        return TorchBatches(self._images(global_batch_size, rank, size, epochs, output), layout, pin_memory=pin_memory)

    @named_options
    def as_column_numpy(
        self,
        global_batch_size: int,
        rank: int | None = None,
        size: int | None = None,
        epochs: int | None = 1,
        **options: Unpack[ColumnOptions],
    ) -> Iterator[tuple[dict[str, Any], Any]]:
        """Gives this rank's batches as an iterator of (columns, weights): NumPy arrays by the names of their columns.

        The rows, their order and their weights are those of `as_dataset`; nothing is decoded. Nested columns come as
        Python values, in which a null is None.

        Args:
            global_batch_size: Rows of a global batch, all ranks together.
            rank: This rank, as in `as_dataset`.
            size: Number of ranks, as in `as_dataset`.
            epochs: Epochs that one iteration goes through.
            **options: `start`, `replicas`, `reader_threads` and `read_timeout_s` as in `as_dataset`, and

                columns: Names of the columns. None is all without those that lakelens keeps in an image table for its
                    next ingest and for inference (`content_hash`, `source_length`, `source_modified`, `batch_id`,
                    `annotation_hash`, `source`).
                fill: What stands for null, by column, of the column's type. Without it floats are NaN, and the class of
                    an image that has none is -1 and "" in an image table, as are the classes and texts of a predictions
                    table; any other null is an error.

        Raises:
            InvalidArgumentError: If an argument is outside its range.
        """
        from .columns import chosen_columns, filling_of, numpy_columns

        output = ColumnOutput(**options)
        shard = self._shard(global_batch_size, rank, size, epochs, output)
        wanted = chosen_columns(self.plan, output.columns, lambda name: True)
        return numpy_columns(shard, wanted, filling_of(self.plan, output.fill))

    @named_options
    def petastorm_reader(
        self,
        columns: Sequence[Any] | None = None,
        num_epochs: int | None = 1,
        cur_shard: int | None = None,
        shard_count: int | None = None,
        transform_spec: Any = None,
        **options: Unpack[ReaderOptions],
    ) -> FeedReader:
        """Gives a shard of the rows behind the contract of Petastorm's Reader: named tuples of arrays.

        `petastorm.tf_utils.make_petastorm_dataset` and the loaders of `petastorm.pytorch` take it. Each row is in
        exactly one shard of an epoch, shards differ by one row at most, and each epoch has a different order.
        Columns come as they are stored; use the reader in `with`, which ends its threads.

        Args:
            columns: Names of the columns, regular expressions or fields of a Unischema; None is all that have a tensor
                form, of those that `as_column_numpy` gives. Arrays of several lengths, or with nulls, have none; a
                `transform_spec` that names them in `edit_fields` receives them.
            num_epochs: Epochs until the data ends; None never ends.
            cur_shard: This process's shard; with `shard_count`, or neither for all rows.
            shard_count: Number of shards.
            transform_spec: A `petastorm.transform.TransformSpec` on pandas frames, or `lakelens.decode_images(...)`.
            **options: How rows come.

                batch_size: Rows of an item; by default about 16 MiB of rows, at most 1,024. The last item of an epoch
                    may have fewer.
                drop_last: Whether that one is left out, so that every shard gives the same number of whole items.
                fill: What stands for null, as in `as_column_numpy`.
                workers_count: Threads that transform and decode; by default one per core, divided by the ranks of this
                    machine.
                reader_threads: Threads that read row groups (4).
                read_timeout_s: Seconds after which a read that has not answered is an error (45).

        Raises:
            InvalidArgumentError: If an argument is outside its range, a column is unknown or has no tensor form, or a
                shard would be empty.
            MissingDependencyError: If Petastorm is not installed.
        """
        from .adapters.reader import FeedReader, shard_of

        output = ReaderOutput(columns=columns, epochs=num_epochs, transform_spec=transform_spec, **options)
        reader = FeedReader(self.plan, *shard_of(cur_shard, shard_count), output)
        self._report_share(reader.batches, reader.bytes_held)
        return reader

    def _images(
        self, global_batch_size: int, rank: int | None, size: int | None, epochs: int | None, output: ImageOutput
    ) -> ImageBatches:
        from .decoded_cache import decoded_images
        from .image_batches import ImageBatches

        shard = self._shard(global_batch_size, rank, size, epochs, output)
        image_size = self.stored_size if output.image_size is None else image_size_of(output.image_size)
        images = ImagePlan(self.plan, output, image_size, self.skipped, self.left_out)
        batches = ImageBatches(shard, images, decoded_images(images) if output.cache else None)
        self._report_share(shard.batches, batches.bytes_held)
        return batches

    def _shard(
        self, global_batch_size: int, rank: int | None, size: int | None, epochs: int | None, reading: Reading
    ) -> Shard:
        if (rank is None) != (size is None):
            raise InvalidArgumentError(f"rank={rank}, size={size}: give both or neither")
        rank, size = running_rank_and_size() if rank is None or size is None else (rank, size)
        batches = RankBatches(self.rows, global_batch_size, rank, size, reading.replicas, self._equal_weights)
        epochs = None if epochs is None else whole_number("epochs", epochs, 1)
        return Shard(self.plan, batches, position_of(self.plan, reading.start), epochs, reading)

    def _report_share(self, batches: RankBatches, images_bytes: int) -> None:
        """Reports once, on rank 0, the share of a rank and the memory that it takes."""
        lanes = len(lanes_of_rank(self.plan.order.lanes, batches.rank, batches.size))
        line = (
            f"feed {self.location}@{self.version}: each of {batches.size} rank(s) takes {batches.most_rows} of the "
            f"{batches.global_batch_size} rows of a batch, {batches.steps()} steps an epoch; it reads {lanes} of "
            f"{self.plan.order.lanes} lanes and holds at most {_mebibytes(self.plan.reading_bytes(lanes))} of row "
            f"groups (memory_bytes) and {_mebibytes(images_bytes)} of images (global_batch_size, prefetch)"
        )
        if batches.rank == 0 and line not in self._reported:
            self._reported.add(line)
            sys.stderr.write(f"lakelens: {line}\n")


def running_rank_and_size() -> tuple[int, int]:
    """Finds this process's rank and the number of ranks: of the running Horovod job, or (0, 1) outside one."""
    distributed = sys.modules.get("lakelens.training.distributed")
    if distributed is not None and distributed.is_initialized():
        return int(distributed.rank()), int(distributed.size())
    return int(os.environ.get("HOROVOD_RANK", "0")), int(os.environ.get("HOROVOD_SIZE", "1"))


def _mebibytes(count: int) -> str:
    return f"{max(1, count >> 20)} MiB"


def _class_numbers(snapshot: Snapshot, label_column: str) -> Mapping[str, int] | None:
    """Gives the numbers of the classes where a column holds their names; None where it holds numbers."""
    require_column(snapshot, label_column, "label_column")
    declared = snapshot.schema[label_column]
    if declared in INTEGERS:
        return None
    found = f"{snapshot.location}@{snapshot.version}: column {label_column!r} is {type_name(declared)}"
    if declared != "string":
        raise NotAnImageTableError(
            f"{found}, class numbers are integers; name another column as label_column, or add one with numbers"
        )
    numbers = labels_at(snapshot)
    if not numbers:
        raise NotAnImageTableError(
            f"{found}, and the table does not number its classes. Number them: ALTER TABLE "
            f"{sql_name(snapshot.location)} SET TBLPROPERTIES ('{LABELS_PROPERTY}' = "
            '\'{"cat": 0, "dog": 1}\'); or name a column of numbers as label_column'
        )
    return numbers
