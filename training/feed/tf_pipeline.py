"""Decoded batches: an iterator of NumPy arrays, and the tf.data pipeline around it."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import MissingDependencyError
from ...etl.images.stored_image import CHANNELS, PixelDecoder, simplejpeg_works
from .buffers import BatchBuffers
from .cached_batches import CachedBatch, cached_batches
from .decode import DecodedBatch, Decoding, DecodingPool
from .decoded_cache import DecodedImages, decoded_images
from .image_rows import Boxes, check_boxes, small_columns_of, stored_batches, stored_columns_of
from .plan.epoch_order import RankBatches
from .plan.position import Start
from .rank_batches import BatchReader, RowBatch
from .read_options import ImageOutput, Preprocess, Reading, available_cores, image_size_of

if TYPE_CHECKING:
    import tensorflow as tf

    from .feed import DeltaFeed

# Batches that are being decoded: the one that is waited for, and the next, so that no thread is idle.
DECODING_BATCHES = 2

# What a batch that is not the last of its epoch says of the epoch that follows.
_WITHIN_EPOCH = -1

Batch = tuple[Any, Any, Any]


@dataclass(frozen=True)
class Pass:
    """Which of a feed's rows one pass goes through, and how they are read.

    Attributes:
        batches: The rank's share.
        start: Where to begin.
        epochs: How many epochs; None never ends.
        reading: How rows are read.
    """

    batches: RankBatches
    start: Start
    epochs: int | None
    reading: Reading

    @property
    def steps(self) -> int | None:
        """Batches of the whole pass; None if it never ends."""
        if self.epochs is None:
            return None
        return self.batches.steps(self.start.row) + (self.epochs - 1) * self.batches.steps()

    def open(self, feed: DeltaFeed, columns: Sequence[str]) -> BatchReader:
        """Starts reading; use the result in `with`."""
        return BatchReader(
            feed.plan,
            columns,
            self.batches,
            start=self.start,
            epochs=self.epochs,
            threads=self.reading.reader_threads,
            timeout_s=self.reading.read_timeout_s,
        )


@dataclass(frozen=True)
class ImagePass:
    """One pass over a feed that gives images.

    Attributes:
        feed: The feed.
        rows: Which rows, and how they are read.
        output: What was asked for.
        decoding: How rows are decoded.
        classes: Number of classes of one-hot labels; None gives numbers.
        decoded: The cache's entry of the decoded images; None decodes in each epoch.
    """

    feed: DeltaFeed
    rows: Pass
    output: ImageOutput
    decoding: Decoding
    classes: int | None
    decoded: DecodedImages | None = None

    @classmethod
    def of(cls, feed: DeltaFeed, rows: Pass, output: ImageOutput) -> ImagePass:
        """Finds how the rows of a feed are decoded.

        Raises:
            InvalidArgumentError: If the feed's table lacks something that is asked for.
            MissingDependencyError: If the decoder that was asked for is not installed.
            BadRowError: If no image tells the size that is not given.
        """
        check_boxes(feed, output.max_boxes)
        given = output.image_size
        decoding = Decoding(
            size=feed.stored_size if given is None else image_size_of(given),
            decoder=PixelDecoder(given is not None, output.jpeg == "fast", _by_simplejpeg(output.decoder)),
            policy=output.bad_rows,
            describe=feed.describe_row,
            skipped=feed.skipped,
        )
        classes = feed.classes_of(output.one_hot)
        decoded = decoded_images(feed, decoding, output) if output.cache else None
        return cls(feed, rows, output, decoding, classes, decoded)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the images of a whole batch."""
        return (self.rows.batches.most_rows, *self.decoding.size, CHANNELS)

    @property
    def batch_bytes(self) -> int:
        """Bytes of the images of one batch."""
        return int(np.prod(self.shape)) * np.dtype(self.output.dtype).itemsize

    @property
    def batches_held(self) -> int:
        """Batches of images that are in memory at once: decoded, kept ready, in `preprocess`, and in use."""
        return DECODING_BATCHES + self.output.prefetch + 2 + (2 * preprocess_calls() if self.output.preprocess else 0)

    def batches(self) -> Iterator[Batch]:
        """Yields the batches before `preprocess`, the next ones being decoded in threads meanwhile."""
        ahead: deque[DecodedBatch] = deque()
        buffers = BatchBuffers(self.shape, self.output.dtype)
        with self._open() as batches:
            stored = stored_batches(
                self.feed,
                batches,
                self.decoding.size,
                self.output.max_boxes,
                classes=self.classes,
                policy=self.output.bad_rows,
                decoded=self.decoded,
            )
            pool = DecodingPool(self.decoding, self.output.threads, buffers)
            try:
                for batch in stored:
                    ahead.append(pool.start(batch))
                    if len(ahead) == DECODING_BATCHES:
                        yield self._complete(ahead.popleft().wait())
                while ahead:
                    yield self._complete(ahead.popleft().wait())
            finally:
                pool.close()

    def _open(self) -> AbstractContextManager[Iterable[RowBatch] | Iterable[CachedBatch]]:
        """Opens the rows of the pass, with the columns that are needed."""
        rows, reading = self.rows, self.rows.reading
        if self.decoded is None:
            return rows.open(self.feed, stored_columns_of(self.feed, self.output.max_boxes))
        columns = self.feed.stored_columns(small_columns_of(self.feed, self.output.max_boxes), reading.read_timeout_s)
        return nullcontext(cached_batches(self.feed.plan, columns, rows.batches, rows.start, rows.epochs))

    def _complete(self, batch: DecodedBatch) -> Batch:
        target: Any = batch.stored.labels
        if self.classes is not None:
            target = (target[:, None] == np.arange(self.classes)).astype(np.float32)
        if batch.stored.boxes is not None:
            target = _with_boxes(target, batch.stored.boxes)
        real = batch.weights > 0
        if not self.rows.batches.is_whole or real.all() or not real.any():
            return batch.images, target, batch.weights
        kept = {name: part[real] for name, part in target.items()} if isinstance(target, dict) else target[real]
        return batch.images[real], kept, batch.weights[real]

    def signature(self) -> Batch:
        """Describes a batch before `preprocess` to TensorFlow."""
        import tensorflow as tf

        target: Any = tf.TensorSpec((None,), tf.int32)
        if self.classes is not None:
            target = tf.TensorSpec((None, self.classes), tf.float32)
        boxes = self.output.max_boxes
        if boxes is not None:
            target = {
                "label": target,
                "boxes": tf.TensorSpec((None, boxes, 4), tf.float32),
                "box_labels": tf.TensorSpec((None, boxes), tf.int32),
                "box_count": tf.TensorSpec((None,), tf.int32),
            }
        images = tf.TensorSpec((None, *self.shape[1:]), self.output.dtype)
        return images, target, tf.TensorSpec((None,), tf.float32)


def image_dataset(passed: ImagePass) -> tf.data.Dataset:
    """Builds the tf.data pipeline behind `DeltaFeed.as_dataset`."""
    return dataset_of(
        passed.rows, passed.signature(), lambda rows: replace(passed, rows=rows).batches(), passed.output.preprocess
    )


def image_arrays(passed: ImagePass) -> Iterator[Batch]:
    """Yields what `DeltaFeed.as_numpy` promises."""
    preprocess = passed.output.preprocess
    for images, target, weights in passed.batches():
        if preprocess is not None:
            images, target = preprocess(images, target)
        yield images, target, weights


def dataset_of(
    passed: Pass,
    signature: Any,
    batches: Callable[[Pass], Iterator[Any]],
    preprocess: Preprocess | None = None,
) -> tf.data.Dataset:
    """Makes a pipeline of batches, whole and in order, of known length.

    An iteration begins with the first epoch that none before it was taken through to its end, unless a start was given:
    then each begins there. A batch counts as taken once it leaves the pipeline, not once it is read ahead, so that a
    look at the first batch changes nothing, and all ranks, which take the same steps, agree on the epoch.

    Args:
        passed: What one iteration goes through.
        signature: TensorFlow's description of a batch, a tuple.
        batches: Gives the batches of one iteration.
        preprocess: Called with the first two parts of a batch inside the pipeline; gives both.
    """
    import tensorflow as tf

    epochs = _Epochs()
    is_pinned = passed.reading.start is not None
    steps = passed.batches.steps()

    def generate() -> Iterator[Any]:
        this = passed if is_pinned else replace(passed, start=Start(epochs.following))
        first = this.start.epoch
        # Not a loop, whose variable would keep the last batch while the next one is waited for.
        yield from map(
            lambda batch, count: (batch, _WITHIN_EPOCH if count % steps else first + count // steps),
            batches(this),
            itertools.count(1),
        )

    def take(batch: Any, following: Any) -> Any:
        tf.cond(
            following == _WITHIN_EPOCH, lambda: following, lambda: tf.numpy_function(epochs.end, [following], tf.int64)
        )
        return batch

    following = tf.TensorSpec((), tf.int64)
    dataset = tf.data.Dataset.from_generator(generate, output_signature=(signature, following))
    if preprocess is not None:

        def preprocessed(batch: Any, following: Any) -> Any:
            images, target = preprocess(batch[0], batch[1])
            return (images, target, batch[2]), following

        dataset = dataset.map(preprocessed, num_parallel_calls=preprocess_calls())
    if passed.steps is not None:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(passed.steps))
    settings = tf.data.Options()
    settings.deterministic = True
    settings.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.prefetch(passed.reading.prefetch).map(take).with_options(settings)


class _Epochs:
    """The epochs that a dataset's iterations have been through.

    Attributes:
        following: The first epoch that no iteration has been taken through to its end.
    """

    def __init__(self) -> None:
        self.following = 0

    def end(self, following: np.int64) -> np.int64:
        """Notes that the epoch before `following` has been taken to its end."""
        self.following = max(self.following, int(following))
        return following


def preprocess_calls() -> int:
    """Calls of `preprocess` at once: few, since an op on a whole batch uses several cores already."""
    return min(4, max(2, available_cores()))


def _by_simplejpeg(decoder: str) -> bool:
    """Chooses what decodes JPEG: simplejpeg where it is installed, unless `decoder` is `pillow`.

    Raises:
        MissingDependencyError: If simplejpeg was asked for and is not installed.
    """
    if decoder == "simplejpeg" and not simplejpeg_works():
        raise MissingDependencyError("decoder='simplejpeg' needs simplejpeg: pip install 'lakelens[feed]'")
    return decoder != "pillow" and simplejpeg_works()


def _with_boxes(label: Any, boxes: Boxes) -> dict[str, Any]:
    return {"label": label, "boxes": boxes.corners, "box_labels": boxes.labels, "box_count": boxes.count}
