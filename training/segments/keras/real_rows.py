"""Excludes padding from training steps: loss, gradients and metrics equal those of plain Keras on the real rows."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ... import distributed as world
from ...distributed.optimizer import weighted
from ...distributed.sync_batch_norm import SyncBatchNormalization, counting_rows_if
from ...keras_internals import flattened_layers
from .model_state import statistics_of


def without_padding(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Removes the rows of weight 0 from batches (images, labels, weights) that one device trains on."""
    if not _has_row_weights(dataset.element_spec):
        return dataset
    return dataset.map(lambda *batch: _real_rows(batch))


def rows_where(real: tf.Tensor, parts: Any) -> Any:
    """Takes the rows of a batch's parts for which `real` [rows] holds; a scalar belongs to the whole batch."""
    return tf.nest.map_structure(lambda part: part if part.shape.rank == 0 else tf.boolean_mask(part, real), parts)


def leave_out_padding(model: keras.Model, workers: int) -> None:
    """Makes a model's training step ignore rows of weight 0 if several workers share each batch.

    Each worker's loss is weighted by its number of real rows, so that the average of their gradients is the gradient of
    the mean over all real rows of the global batch, and a penalty on weights counts once. A worker without
    real rows changes neither metrics nor moving statistics.
    """
    plain_step = model.train_step

    def train_step(data: Any) -> Any:
        if not _has_row_weights(data):
            return plain_step(data)
        images, labels, weights = _real_rows(data)
        rows = tf.math.count_nonzero(weights > 0, dtype=tf.float32)
        share = tf.math.divide_no_nan(rows * workers, _over_workers(rows))
        kept = [*model.metrics_variables, *_own_statistics(model)]
        before = [(variable, tf.convert_to_tensor(variable)) for variable in kept]
        with weighted(model.optimizer, share), counting_rows_if(rows > 0):
            logs = plain_step((images, labels, weights))
        for variable, value in before:  # a batch of only padding has no loss, no accuracy and no statistics
            variable.assign(tf.where(rows > 0, tf.convert_to_tensor(variable), value))
        return logs

    model.train_step = train_step


def _has_row_weights(batch: Any) -> bool:
    """Checks for (images, labels, weights) with a weight per row; a custom dataset may lack weights."""
    return (
        isinstance(batch, tuple)
        and len(batch) == 3
        and getattr(batch[2], "shape", None) is not None
        and (batch[2].shape.rank == 1)
    )


def _real_rows(batch: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    real = batch[2] > 0
    # Layers cannot run without rows: a batch of only padding keeps one row, of weight 0.
    kept = tf.concat([real[:1] | ~tf.reduce_any(real), real[1:]], axis=0)

    # A whole batch is not copied.
    images, labels, weights = tf.cond(tf.reduce_all(real), lambda: batch, lambda: rows_where(kept, batch))
    return images, labels, weights


def _own_statistics(model: keras.Model) -> list[keras.Variable]:
    """Lists the statistics of this worker's rows; SyncBatchNormalization keeps those of the rows of all ranks."""
    shared = [layer for layer in flattened_layers(model) if isinstance(layer, SyncBatchNormalization)]
    of_all_ranks = {id(variable) for layer in shared for variable in layer.non_trainable_variables}
    return [variable for variable in statistics_of(model) if id(variable) not in of_all_ranks]


def _over_workers(rows: tf.Tensor) -> tf.Tensor:
    replicas = tf.distribute.get_replica_context()
    if replicas is not None and replicas.num_replicas_in_sync > 1:
        return replicas.all_reduce(tf.distribute.ReduceOp.SUM, rows)
    return world.allreduce(rows, name="lakelens.rows", op=world.Sum)
