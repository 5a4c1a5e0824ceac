"""Batches of decoded images, made in threads of stored rows: an iterator of NumPy arrays, and a tf.data pipeline."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...errors import ImageError
from ...etl.images.stored_image import CHANNELS
from .decoded_cache import DecodedImages
from .image_plan import ImagePlan
from .image_rows import BOX_COLUMNS, StoredBatch, stored_batches
from .plan.feed_plan import Shard
from .rank_batches import BatchBuffers, BatchReader
from .tf_pipeline import dataset_of, preprocess_calls, seeds_of

if TYPE_CHECKING:
    import tensorflow as tf

# Rows that are worth its own task.
_ROWS_PER_TASK = 4


@dataclass(frozen=True)
class DecodedBatch:
    """A batch that is being decoded."""

    stored: StoredBatch  # The batch as it was stored
    images: npt.NDArray[Any]  # [rows, height, width, 3], complete once `wait` has returned
    weights: npt.NDArray[np.float32]  # float32 [rows], zero where a row is bad
    _tasks: Sequence[Future[None]]

    def wait(self) -> DecodedBatch:
        """Waits for the last row."""
        for task in self._tasks:
            error = task.exception()
            if error is not None:
                # Raised in here, the error would hold this frame, and by its tasks the frame the error: a cycle that
                # keeps images and row groups until the next garbage collection.
                try:
                    raise error
                finally:
                    del self, task, error
        return self


def _decode_rows(
    plan: ImagePlan, batch: StoredBatch, images: npt.NDArray[Any], weights: npt.NDArray[np.float32], rows: Iterable[int]
) -> None:
    """Decodes some rows of a batch into `images`, and takes the weight of those that are skipped."""
    direct = images.dtype == np.uint8
    scratch = np.empty((0, 0, 0) if direct else images.shape[1:], dtype=np.uint8)
    for i in rows:
        pixels = images[i] if direct else scratch
        try:
            plan.decoder.decode(batch.images[i], pixels)
        except ImageError as error:
            pixels[...] = 0
            if weights[i]:
                plan.refuse(batch.origins[i].tolist(), plan.undecodable(str(error)))
                weights[i] = 0
        if not direct:
            images[i] = scratch


# Batches that are being decoded: the requested batch and the next one, so that no thread is idle.
DECODING_BATCHES = 2

Batch = tuple[Any, Any, Any]


@dataclass(frozen=True)
class ImageBatches:
    """The images of a shard."""

    shard: Shard  # Which rows, and how they are read
    images: ImagePlan  # What comes out
    decoded: DecodedImages | None = None  # The images, decoded before; None decodes them in each epoch

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the images of a whole batch."""
        return (self.shard.batches.most_rows, *self.images.size, CHANNELS)

    @property
    def bytes_held(self) -> int:
        """Bytes of images that are in memory at once: decoded, kept ready, in `preprocess`, and in use."""
        batches = DECODING_BATCHES + self.images.output.prefetch + 2
        if self.images.output.preprocess:
            batches += 2 * preprocess_calls()
        return batches * int(np.prod(self.shape)) * np.dtype(self.images.output.dtype).itemsize

    def as_dataset(self) -> tf.data.Dataset:
        """Builds the pipeline behind `DeltaFeed.as_dataset`."""
        return dataset_of(
            self.shard,
            self._signature(),
            lambda shard: replace(self, shard=shard).decoded_batches(),
            self.images.output.preprocess,
            seeded=self.images.output.seeded,
        )

    def as_arrays(self) -> Iterator[Batch]:
        """Yields what `DeltaFeed.as_numpy` promises."""
        preprocess = self.images.output.preprocess
        for (images, target, weights), seed in zip(self.decoded_batches(), seeds_of(self.shard), strict=False):
            if preprocess is not None:
                images, target = preprocess(images, target, *([seed] if self.images.output.seeded else []))
            yield images, target, weights

    def decoded_batches(self) -> Iterator[Batch]:
        """Yields the batches before `preprocess`, the next ones being decoded in threads meanwhile."""
        ahead: deque[DecodedBatch] = deque()
        most_ahead = 1  # the first batch waits for no row group but its own
        buffers = BatchBuffers(self.shape, self.images.output.dtype)
        columns = self.images.columns if self.decoded is None else self.images.small_columns
        with BatchReader(self.shard, columns) as batches:
            pool = ThreadPoolExecutor(self.images.output.threads, thread_name_prefix="lakelens-decode")
            try:
                for batch in stored_batches(self.images, batches, self.decoded):
                    ahead.append(self._start(batch, pool, buffers.take()))
                    if len(ahead) == most_ahead:
                        yield self._complete(ahead.popleft().wait())
                        most_ahead = DECODING_BATCHES
                while ahead:
                    yield self._complete(ahead.popleft().wait())
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _start(self, batch: StoredBatch, pool: ThreadPoolExecutor, buffer: npt.NDArray[Any]) -> DecodedBatch:
        """Begins to decode a batch, its rows divided among the threads, so that few batches are in memory at once."""
        weights = batch.weights.copy()
        images = buffer[: len(weights)]
        rows = len(batch.images)
        images[rows:] = 0
        share = max(_ROWS_PER_TASK, -(-rows // self.images.output.threads))
        shares = [range(first, min(first + share, rows)) for first in range(0, rows, share)]
        if batch.copy is not None:
            tasks = [pool.submit(batch.copy, images, part) for part in shares]
        else:
            tasks = [pool.submit(_decode_rows, self.images, batch, images, weights, part) for part in shares]
        return DecodedBatch(batch, images, weights, tasks)

    def _complete(self, batch: DecodedBatch) -> Batch:
        target: Any = batch.stored.labels if batch.stored.boxes is None else batch.stored.boxes
        real = batch.weights > 0
        if not self.shard.batches.is_whole or real.all() or not real.any():
            return batch.images, target, batch.weights
        return batch.images[real], target[real], batch.weights[real]

    def _signature(self) -> Batch:
        """Describes a batch before `preprocess` to TensorFlow."""
        import tensorflow as tf

        target: Any = tf.TensorSpec((None,), tf.int32)
        if self.images.has_boxes:
            target = tf.TensorSpec((None, None, BOX_COLUMNS), tf.float32)
        images = tf.TensorSpec((None, *self.shape[1:]), self.images.output.dtype)
        return images, target, tf.TensorSpec((None,), tf.float32)
