"""Batch normalization over the rows of all ranks, under Horovod's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf

from ...errors import InvalidArgumentError
from .collectives import allgather
from .membership import rank, size
from .reduce_ops import Sum
from .reductions import allreduce

# With the slash at its end the scope's name is absolute: operations are then named by the order in which they are
# traced, not by the layers' names, which each process counts separately.
_SCOPE = "lakelens_sync_batch_norm/"
# Whether this rank has real rows in the traced step; None counts all rows.
_HAS_ROWS: ContextVar[tf.Tensor | None] = ContextVar("lakelens_has_rows", default=None)


@keras.saving.register_keras_serializable(package="lakelens")
class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """Normalizes by mean and variance over the rows of all ranks, and keeps their moving averages.

    The result is that of `keras.layers.BatchNormalization` on the concatenated batch of all ranks, for any number of
    rows per rank; the gradient is that of the sum of all ranks' losses. With one process, and in inference, it is the
    plain layer. Each such layer costs two collective operations per training step.

    Args:
        fused: Horovod's option; False only.
        **options: Of `keras.layers.BatchNormalization`.

    Raises:
        InvalidArgumentError: If `fused` is not False.
    """

    def __init__(self, fused: bool = False, **options: Any) -> None:
        if fused is not False:
            raise InvalidArgumentError(f"fused={fused!r}: statistics of all ranks have no fused form; leave it out")
        super().__init__(**options)

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        """Returns mean and variance [channels] of all ranks' rows; called by Keras in training."""
        mean, variance = super()._moments(inputs, mask)
        if size() == 1:
            return mean, variance
        shape = tf.shape(inputs)
        weights = tf.ones(shape, inputs.dtype)
        real = _HAS_ROWS.get()
        if real is not None:
            weights *= tf.cast(real, inputs.dtype)
        if mask is not None:
            weights *= tf.cast(tf.expand_dims(mask, -1), inputs.dtype)
        dimensions = inputs.shape.rank
        count = tf.reduce_sum(weights, [each for each in range(dimensions) if each != self.axis % dimensions])
        channels = (inputs.shape[self.axis],)
        # A rank without rows has no mean: its zeros have no weight.
        local = [tf.where(count > 0, tf.reshape(value, channels), tf.zeros_like(count)) for value in (mean, variance)]
        everyone = _of_all_ranks(tf.stack([count, *local]))
        counts, means, variances = tf.unstack(everyone, axis=1)
        total = tf.reduce_sum(counts, 0)
        mean = tf.math.divide_no_nan(tf.reduce_sum(counts * means, 0), total)
        # Chan, Golub and LeVeque 1979: a mean of squares minus the square of the mean would lose precision.
        squares = tf.reduce_sum(counts * (variances + tf.square(means - mean)), 0)
        return mean, tf.math.divide_no_nan(squares, total)


@contextmanager
def counting_rows_if(real: tf.Tensor) -> Iterator[None]:
    """Counts this rank's rows inside the block only if `real`, a boolean, is true: a padding batch has one row."""
    before = _HAS_ROWS.set(real)
    try:
        yield
    finally:
        _HAS_ROWS.reset(before)


@tf.custom_gradient  # type: ignore[untyped-decorator]
def _of_all_ranks(local: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Returns every rank's tensor, [ranks, ...]; the gradient of each is the sum of all ranks' gradients of it."""
    with tf.name_scope(_SCOPE):
        gathered = allgather(tf.expand_dims(local, 0), name="statistics")
    everyone = tf.ensure_shape(gathered, (size(), *local.shape))

    def gradient(upstream: Any) -> Any:
        with tf.name_scope(_SCOPE):
            return allreduce(upstream, name="gradients", op=Sum)[rank()]

    return everyone, gradient
