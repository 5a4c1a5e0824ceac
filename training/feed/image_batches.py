"""Batches of decoded images: an iterator of NumPy arrays, and a tf.data pipeline."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...etl.images.stored_image import CHANNELS
from .box_rows import BOX_COLUMNS
from .buffers import BatchBuffers
from .decode import DecodedBatch, DecodingPool
from .decoded_cache import DecodedImages
from .image_plan import ImagePlan
from .image_rows import stored_batches
from .rank_batches import BatchReader
from .shard import Shard
from .tf_pipeline import dataset_of, preprocess_calls, seeds_of

if TYPE_CHECKING:
    import tensorflow as tf

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
        buffers = BatchBuffers(self.shape, self.images.output.dtype)
        columns = self.images.columns if self.decoded is None else self.images.small_columns
        with BatchReader(self.shard, columns) as batches:
            pool = DecodingPool(self.images, self.images.output.threads, buffers)
            try:
                for batch in stored_batches(self.images, batches, self.decoded):
                    ahead.append(pool.start(batch))
                    if len(ahead) == DECODING_BATCHES:
                        yield self._complete(ahead.popleft().wait())
                while ahead:
                    yield self._complete(ahead.popleft().wait())
            finally:
                pool.close()

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
