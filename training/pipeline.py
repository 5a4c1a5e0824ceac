"""Decoded batches: a tf.data pipeline, or an iterator of NumPy arrays for those who use no TensorFlow."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import InvalidArgumentError, LakelensError
from .batches import BatchReader, Start
from .decode import DecodedBatch, Decoding, DecodingPool, TensorFlowDecoder, image_size_of, library_for
from .sharding import RankBatches
from .stored import CHANNELS, StoredBatch, check_boxes, stored_batches, stored_columns_of

if TYPE_CHECKING:
    import tensorflow as tf

    from .feed import DeltaFeed

DTYPES = ("float32", "uint8")
# What pipelines of this process have raised, newest last: TensorFlow carries an exception's text, not its type.
_raised: deque[LakelensError] = deque(maxlen=32)


@dataclass(frozen=True)
class Pass:
    """Which of a feed's rows one pass goes through, and how they are read.

    Attributes:
        batches: The rank's share.
        start: Where to begin.
        epochs: How many epochs; None never ends.
        reader_threads: Threads that read row groups.
        read_timeout_s: Seconds after which a read that has not answered is an error.
    """

    batches: RankBatches
    start: Start
    epochs: int | None
    reader_threads: int
    read_timeout_s: float

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
            threads=self.reader_threads,
            timeout_s=self.read_timeout_s,
        )


@dataclass(frozen=True)
class Output:
    """How rows become tensors; see `DeltaFeed.as_dataset`."""

    image_size: int | Sequence[int] | None = None
    preprocess: Callable[..., Any] | None = None
    dtype: str = "float32"
    bad_rows: str = "error"
    jpeg: str = "accurate"
    decoder: str = "auto"
    classes: int | None = None
    max_boxes: int | None = None
    decode_threads: int | None = None
    prefetch: int = 2

    def decoding(self, feed: DeltaFeed, *, with_tensorflow: bool) -> Decoding:
        """Finds how the rows of a feed are decoded, and checks what was asked for.

        Raises:
            InvalidArgumentError: If something is outside its range.
            MissingDependencyError: If the decoder that was asked for is not installed.
        """
        library = library_for(self.decoder, with_tensorflow=with_tensorflow)
        if self.dtype not in DTYPES:
            raise InvalidArgumentError(f"dtype={self.dtype!r}: images come as {' or '.join(DTYPES)}")
        check_boxes(feed, self.max_boxes)
        resize = self.image_size is not None
        height, width = feed.stored_size if self.image_size is None else image_size_of(self.image_size)
        return Decoding(height, width, resize, self.bad_rows, self.jpeg, library, feed.describe_row, feed.skipped)

    @property
    def threads(self) -> int:
        """Threads that decode, when TensorFlow does not."""
        return self.decode_threads or available_cores()


def available_cores() -> int:
    """Counts the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def feed_errors() -> Iterator[None]:
    """Raises feed errors as what they are, where TensorFlow has wrapped them into one of its own.

    Use it around a loop over a feed's dataset, or around `model.fit`.

    Raises:
        FeedError: In place of TensorFlow's error, which is its cause.
    """
    try:
        yield
    except LakelensError:
        raise
    except Exception as error:
        text = str(error)
        for known in reversed(_raised):
            if str(known) in text:
                raise known from error
        raise


def remembered(items: Iterator[Any]) -> Iterator[Any]:
    """Passes items on and remembers an error of ours that ends them."""
    try:
        yield from items
    except LakelensError as error:
        _raised.append(error)
        raise


def image_dataset(feed: DeltaFeed, passed: Pass, output: Output) -> tf.data.Dataset:
    """Builds the tf.data pipeline behind `DeltaFeed.as_dataset`."""
    import tensorflow as tf

    decoding = output.decoding(feed, with_tensorflow=True)
    rows = passed.batches.local_rows
    build = _decoded_by_tensorflow if decoding.library == "tensorflow" else _decoded_by_threads
    dataset = build(feed, passed, output, decoding)

    def complete(images: Any, weights: Any, labels: Any, *boxes: Any) -> tuple[Any, Any, Any]:
        images = tf.cast(tf.ensure_shape(images, (rows, decoding.height, decoding.width, CHANNELS)), output.dtype)
        target: Any = labels if output.classes is None else tf.one_hot(labels, output.classes)
        if boxes:
            target = _box_target(target, *boxes)
        if output.preprocess is not None:
            images, target = output.preprocess(images, target)
        return images, target, tf.ensure_shape(weights, (rows,))

    # Few at once: an op on a whole batch uses several cores already.
    dataset = dataset.map(complete, num_parallel_calls=min(4, max(2, available_cores())))
    return finished(dataset, passed, output.prefetch)


def _decoded_by_threads(feed: DeltaFeed, passed: Pass, output: Output, decoding: Decoding) -> tf.data.Dataset:
    """Gives (pixels, weights, labels, boxes ...), decoded before TensorFlow takes them over, uncopied."""
    import tensorflow as tf

    rows = passed.batches.local_rows
    signature = (
        tf.TensorSpec((rows, decoding.height, decoding.width, CHANNELS), tf.uint8),
        tf.TensorSpec((rows,), tf.float32),
        *_label_signature(rows, output.max_boxes),
    )

    def generate() -> Iterator[tuple[Any, ...]]:
        for batch in remembered(decoded_batches(feed, passed, output, decoding)):
            yield batch.pixels, batch.weights, *_labels_and_boxes(batch.stored)

    return tf.data.Dataset.from_generator(generate, output_signature=signature)


def _decoded_by_tensorflow(feed: DeltaFeed, passed: Pass, output: Output, decoding: Decoding) -> tf.data.Dataset:
    """Gives (pixels, weights, labels, boxes ...), decoded by TensorFlow's ops."""
    import tensorflow as tf

    rows, stored = passed.batches.local_rows, feed.stored_size
    decoder = TensorFlowDecoder(rows, decoding)
    signature = (
        tf.TensorSpec((rows,), tf.string),
        tf.TensorSpec((None, *stored, CHANNELS), tf.uint8),
        tf.TensorSpec((rows, 2), tf.int64),
        tf.TensorSpec((rows,), tf.float32),
        *_label_signature(rows, output.max_boxes),
    )

    def generate() -> Iterator[tuple[Any, ...]]:
        for batch in remembered(_open_stored(feed, passed, output, decoding)):
            encoded = [bytes(data) for data in batch.encoded]
            yield encoded, batch.pixels, batch.origins, batch.weights, *_labels_and_boxes(batch)

    def decode_batch(*arguments: Any) -> tuple[Any, Any]:
        try:
            return decoder(*arguments)
        except LakelensError as error:
            _raised.append(error)
            raise

    def decode(encoded: Any, pixels: Any, origins: Any, weights: Any, *others: Any) -> tuple[Any, ...]:
        images, weights = tf.py_function(decode_batch, [encoded, pixels, origins, weights], [tf.uint8, tf.float32])
        return images, weights, *others

    dataset = tf.data.Dataset.from_generator(generate, output_signature=signature)
    return dataset.map(decode, num_parallel_calls=output.decode_threads or min(4, max(2, available_cores())))


def _label_signature(rows: int, max_boxes: int | None) -> tuple[Any, ...]:
    import tensorflow as tf

    labels = tf.TensorSpec((rows,), tf.int32)
    if max_boxes is None:
        return (labels,)
    corners = tf.TensorSpec((rows, max_boxes, 4), tf.float32)
    return labels, corners, tf.TensorSpec((rows, max_boxes), tf.int32), tf.TensorSpec((rows,), tf.int32)


def _labels_and_boxes(batch: StoredBatch) -> tuple[npt.NDArray[Any], ...]:
    if batch.boxes is None:
        return (batch.labels,)
    return batch.labels, batch.boxes.corners, batch.boxes.labels, batch.boxes.count


def finished(dataset: tf.data.Dataset, passed: Pass, prefetch: int) -> tf.data.Dataset:
    """Gives a pipeline its length, its prefetch and the options that keep its batches whole and in order."""
    import tensorflow as tf

    if passed.steps is not None:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(passed.steps))
    settings = tf.data.Options()
    settings.deterministic = True
    settings.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.prefetch(prefetch).with_options(settings)


def _open_stored(
    feed: DeltaFeed, passed: Pass, output: Output, decoding: Decoding
) -> Generator[StoredBatch, None, None]:
    """Reads until the end, or until the iterator is closed."""
    size = (decoding.height, decoding.width)
    with passed.open(feed, stored_columns_of(feed, output.max_boxes)) as reader:
        yield from stored_batches(feed, reader, feed.stored_size, size, output.max_boxes)


def decoded_batches(feed: DeltaFeed, passed: Pass, output: Output, decoding: Decoding) -> Iterator[DecodedBatch]:
    """Yields decoded batches, with the next ones being decoded in threads meanwhile."""
    ahead: deque[DecodedBatch] = deque()
    batches = _open_stored(feed, passed, output, decoding)
    pool = DecodingPool(decoding, output.threads)
    try:
        for batch in batches:
            ahead.append(pool.start(batch))
            if len(ahead) > output.prefetch:
                yield ahead.popleft().wait()
        while ahead:
            yield ahead.popleft().wait()
    finally:
        pool.close()
        batches.close()


def numpy_batches(feed: DeltaFeed, passed: Pass, output: Output, decoding: Decoding) -> Iterator[tuple[Any, Any, Any]]:
    """Yields what `DeltaFeed.as_numpy` promises."""
    for batch in decoded_batches(feed, passed, output, decoding):
        images: npt.NDArray[Any] = batch.pixels if output.dtype == "uint8" else batch.pixels.astype(np.float32)
        target: Any = batch.stored.labels
        if output.classes is not None:
            target = (target[:, None] == np.arange(output.classes)).astype(np.float32)
        if batch.stored.boxes is not None:
            boxes = batch.stored.boxes
            target = _box_target(target, boxes.corners, boxes.labels, boxes.count)
        if output.preprocess is not None:
            images, target = output.preprocess(images, target)
        yield images, target, batch.weights


def _box_target(label: Any, corners: Any, labels: Any, count: Any) -> dict[str, Any]:
    return {"label": label, "boxes": corners, "box_labels": labels, "box_count": count}
