"""Measures a Keras model on the validation rows, and averages its statistics over ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from ....errors import NotFiniteError, TrialError
from ... import distributed as world
from ...checkpoints.keras_output import layers_give_logits
from .callbacks import RankCallbacks
from .checks import check_answers
from .metric_sums import metrics_over_ranks
from .model_state import statistics_of
from .noise import copies_of
from .real_rows import rows_where

if TYPE_CHECKING:
    from ...tasks.task import Counts, Task

# Images of a picture.
_SHOWN = 8


class Validation:
    """Measures the model on the validation rows of all ranks.

    Attributes:
        picture: On rank 0 the task's picture of the first rows that `count` has met; None if it has none.
    """

    def __init__(self, dataset: tf.data.Dataset, rows: int, batches: int) -> None:
        self.picture: bytes | None = None
        self._draws = world.rank() == 0
        real = dataset.map(lambda *batch: rows_where(batch[2] > 0, batch)).filter(_has_rows)
        # Without a known length Keras warns after each epoch that the data ran out.
        self._dataset = real.apply(tf.data.experimental.assert_cardinality(batches)) if rows else None
        self._rows = rows
        self._first_images: Any = None

    def measure(
        self,
        model: keras.Model,
        task: Task,
        described: Mapping[str, Any],
        callbacks: RankCallbacks | None,
    ) -> dict[str, float]:
        """Returns each metric over the rows of all ranks, as `val_...`; the model's running metrics stay unchanged.

        Callbacks hear of the validation as `fit` tells them, those of a rank without rows too, and get these metrics.
        """
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


def _has_rows(images: tf.Tensor, labels: Any, weights: tf.Tensor) -> tf.Tensor:
    return tf.size(weights) > 0
