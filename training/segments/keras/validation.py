"""Measures a Keras model on the validation rows, and excludes padding from steps: as plain Keras on the real rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from ....errors import NotFiniteError, TrialError
from ... import distributed as world
from ...checkpoints.keras_output import layers_give_logits
from ...distributed.optimizer import weighted
from ...distributed.sync_batch_norm import SyncBatchNormalization, counting_rows_if
from ...keras_internals import flattened_layers
from .checks import check_answers
from .metric_sums import metrics_over_ranks
from .model_state import RankCallbacks, copies_of, statistics_of

if TYPE_CHECKING:
    from ...tasks.task import Counts, Task


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
    the mean over all real rows of the global batch, and a penalty on weights counts once.
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
    shape = getattr(batch[2], "shape", None) if isinstance(batch, tuple) and len(batch) == 3 else None
    return shape is not None and shape.rank == 1


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


# Images of a picture.
_SHOWN = 8


class Validation:
    """Measures the model on the validation rows of all ranks."""

    def __init__(self, dataset: tf.data.Dataset, rows: int, batches: int) -> None:
        self.picture: bytes | None = None  # On rank 0 the task's picture of the first rows of the last `count`
        self._draws = world.rank() == 0
        real = dataset.map(lambda *batch: rows_where(batch[2] > 0, batch))
        real = real.filter(lambda *batch: tf.size(batch[2]) > 0)
        # Without a known length Keras warns after each epoch that the data ran out.
        self._dataset = real.apply(tf.data.experimental.assert_cardinality(batches)) if rows else None
        self._rows = rows
        self._first_images: Any = None

    def measure(
        self, model: keras.Model, task: Task, described: Mapping[str, Any], callbacks: RankCallbacks | None
    ) -> dict[str, float]:
        """Returns each metric over the rows of all ranks, as `val_...`; the model's running metrics stay unchanged."""
        running = [(copy, np.asarray(copy)) for variable in model.metrics_variables for copy in copies_of(variable)]
        model.reset_metrics()  # a rank without rows adds nothing
        values: dict[str, Any] = {}
        if self._dataset is not None:
            values = model.evaluate(self._dataset, callbacks=callbacks, return_dict=True, verbose=0)
        elif callbacks is not None:
            callbacks.on_test_begin()
        self._check_answers(model, task, described)
        measured = metrics_over_ranks(model, values, self._rows)
        if callbacks is not None:
            callbacks.end_validation(measured)
        for copy, value in running:
            copy.assign(value)
        return {f"val_{name}": value for name, value in measured.items()}

    def _check_answers(self, model: keras.Model, task: Task, described: Mapping[str, Any]) -> None:
        if layers_give_logits(model) is not None:
            return  # on every rank: nothing is read and exchanged for what the last layer shows
        failure: TrialError | None = None
        if self._dataset is not None:
            if self._first_images is None:
                self._first_images = np.asarray(next(iter(self._dataset.take(1)))[0])[:_SHOWN]
            try:
                check_answers(model, task, described, self._first_images)
            except TrialError as error:
                failure = error
        for each in world.allgather_object(failure, name="lakelens.answers"):
            if each is not None:
                raise each

    def count(self, model: keras.Model, task: Task, described: Mapping[str, Any]) -> Counts:
        """Counts for the task's evaluation, on the rows of this rank."""
        run = tf.function(lambda images: model(images, training=False), reduce_retracing=True)
        parts: list[Counts] = []
        for images, labels, _ in self._dataset if self._dataset is not None else ():
            outputs, given = tf.nest.map_structure(np.asarray, (run(images), labels))
            if not all(np.isfinite(part).all() for part in tf.nest.flatten(outputs)):
                raise NotFiniteError("output is NaN or infinite for validation rows")
            if not parts and self._draws:
                few = tf.nest.map_structure(lambda part: np.asarray(part)[:_SHOWN], (images, outputs, given))
                shown, found, true = few
                self.picture = task.picture(shown, found, true, described)
            parts.append(task.count(outputs, given, described))
        return task.joined(parts)


def average_statistics(model: keras.Model) -> None:
    """Averages untrained floating-point variables over ranks and devices; seeds and counters stay."""
    variables = statistics_of(model)
    if not variables or world.size() * len(copies_of(variables[0])) == 1:
        return
    means = [tf.add_n(copies) / len(copies) for copies in map(copies_of, variables)]
    averages = world.grouped_allreduce(means, name="lakelens.statistics")
    for variable, average in zip(variables, averages, strict=True):
        variable.assign(average)


def count_rows(dataset: tf.data.Dataset) -> tuple[int, int]:
    """Counts rows of positive weight and batches with such rows, in one iteration over (images, labels, weights)."""

    def add(counts: tuple[Any, Any], batch: tuple[Any, ...]) -> tuple[Any, Any]:
        real = tf.math.count_nonzero(batch[2] > 0, dtype=tf.int64)
        return counts[0] + real, counts[1] + tf.cast(real > 0, tf.int64)

    zero = tf.constant(0, tf.int64)
    rows, batches = dataset.reduce((zero, zero), add)
    return int(rows.numpy()), int(batches.numpy())
