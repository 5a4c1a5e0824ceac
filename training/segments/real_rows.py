"""Leaves padding out of training steps: loss, gradients and metrics equal those of plain Keras on the real rows."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from .. import distributed as world
from ..distributed.optimizer import weighted


def without_padding(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Removes the rows of weight 0 from batches (images, labels, weights) that one device trains on."""
    if not _has_row_weights(dataset.element_spec):
        return dataset
    return dataset.map(lambda *batch: _real_rows(batch))


def leave_out_padding(model: keras.Model, workers: int, *, weights_count: bool) -> None:
    """Makes a model's training step ignore rows of weight 0, where several workers share each batch.

    Each worker's gradient counts as many times as the worker has real rows, so that their average is the gradient of
    the mean over all real rows of the global batch, and a penalty on weights counts once.

    Args:
        model: A compiled model with a distributed optimizer.
        workers: Ranks, or replicas of this process.
        weights_count: Whether a weight counts as it is; False makes it 1 in every real row, as for a feed's batches.
    """
    plain_step = model.train_step

    def train_step(data: Any) -> Any:
        if not _has_row_weights(data):
            return plain_step(data)
        images, labels, weights = _real_rows(data)
        rows = tf.math.count_nonzero(weights > 0, dtype=tf.float32)
        share = tf.math.divide_no_nan(rows * workers, _over_workers(rows))
        before = [(variable, tf.convert_to_tensor(variable)) for variable in model.metrics_variables]
        with weighted(model.optimizer, share):
            logs = plain_step((images, labels, weights if weights_count else tf.cast(weights > 0, weights.dtype)))
        for variable, value in before:  # a batch of padding alone has no loss and no accuracy
            variable.assign(tf.where(rows > 0, tf.convert_to_tensor(variable), value))
        return logs

    model.train_step = train_step


def _has_row_weights(batch: Any) -> bool:
    """Checks for (images, labels, weights) with a weight per row; a dataset of the user's own may lack weights."""
    return (
        isinstance(batch, tuple)
        and len(batch) == 3
        and getattr(batch[2], "shape", None) is not None
        and (batch[2].shape.rank == 1)
    )


def _real_rows(batch: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    real = batch[2] > 0
    # Layers cannot run without rows: a batch of padding alone keeps one row, of weight 0.
    kept = tf.concat([real[:1] | ~tf.reduce_any(real), real[1:]], axis=0)

    def masked() -> Any:
        return tf.nest.map_structure(lambda part: tf.boolean_mask(part, kept), batch)

    images, labels, weights = tf.cond(tf.reduce_all(real), lambda: batch, masked)  # a whole batch is not copied
    return images, labels, weights


def _over_workers(rows: tf.Tensor) -> tf.Tensor:
    replicas = tf.distribute.get_replica_context()
    if replicas is not None and replicas.num_replicas_in_sync > 1:
        return replicas.all_reduce(tf.distribute.ReduceOp.SUM, rows)
    return world.allreduce(rows, name="lakelens.rows", op=world.Sum)
