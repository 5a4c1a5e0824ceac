"""What ranks measure and record at the boundaries of a training, on every rank alike."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...tracking.run_records import RecordFile, RunRecord
from .. import distributed as world
from ..distributed.callbacks import MetricAverageCallback
from ..trials.metrics import RankMetrics, mean_over_ranks
from .schedule import Schedule


class Validation:
    """Measures the model on the validation rows of all ranks.

    Args:
        dataset: This rank's batches (images, labels, weights); rows of weight 0 are left out.
        rows: Rows of positive weight in it.
        batches: Batches in it that have such rows.
    """

    def __init__(self, dataset: tf.data.Dataset, rows: int, batches: int) -> None:
        real = dataset.map(_real_rows).filter(_has_rows)
        # Without a known end Keras warns after each pass that the data ran out.
        self._dataset = real.apply(tf.data.experimental.assert_cardinality(batches)) if rows else None
        self._rows = rows

    def measure(self, model: keras.Model) -> dict[str, float]:
        """Gives the mean of each metric over all ranks, as `val_...`; the model's running metrics stay as they are."""
        values: dict[str, float] = {}
        if self._dataset is not None:
            running = [(variable, np.asarray(variable)) for variable in model.metrics_variables]
            values = model.evaluate(self._dataset, return_dict=True, verbose=0)
            for variable, value in running:
                variable.assign(value)
        mine = RankMetrics(self._rows, {f"val_{name}": float(value) for name, value in values.items()})
        return mean_over_ranks(world.allgather_object(mine, name="lakelens.validation"))


class TrainingMetrics:
    """The training metrics of the epoch in progress, over all ranks.

    Args:
        model: The model in training.
        rows: Rows of an epoch; None for a dataset of the user's own, whose padding is not known.
        batch_size: Rows of a batch over all ranks.
    """

    def __init__(self, model: keras.Model, rows: int | None, batch_size: int) -> None:
        self._model, self._rows, self._batch_size = model, rows, batch_size
        self._average = MetricAverageCallback()
        self._average.set_model(model)

    def over_ranks(self, logs: Mapping[str, Any], steps: int) -> dict[str, float]:
        """Averages this rank's metrics; every rank calls it.

        Args:
            logs: This rank's.
            steps: Steps of the epoch so far.
        """
        metrics = {name: float(value) for name, value in logs.items()}
        self._average.on_epoch_end(0, metrics)
        # Keras counts the rows of weight zero that fill the last batch as rows of the loss. What belongs to weights
        # rather than rows (regularisation) cannot be told apart in it.
        if self._rows is not None and "loss" in metrics and not self._model.losses:
            counted = steps * self._batch_size
            metrics["loss"] *= counted / min(counted, self._rows)
        return metrics


class Report:
    """Records metrics and sends a line to the driver, on rank 0.

    Args:
        records: Where the driver reads them.
        schedule: Whether epochs or steps are counted.
        epochs: Epochs that are planned.
    """

    def __init__(self, records: RecordFile, schedule: Schedule, epochs: int) -> None:
        self._records = records
        self._schedule = schedule
        self._epochs = epochs
        self._known = {record.step for record in records.read() if record.metrics}
        self._started = time.perf_counter()

    def begin(self) -> None:
        """Starts the clock."""
        self._started = time.perf_counter()

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Reports the metrics after a step; those that are recorded, by a training that went on from before, stay."""
        seconds = time.perf_counter() - self._started
        number = self._schedule.recorded_as(step)
        by_epochs = self._schedule.counts_epochs
        if number not in self._known:
            timed = {"epoch_seconds": seconds} if by_epochs else {}
            self._records.add(RunRecord({**metrics, **timed}, number))
            self._known.add(number)
        place = f"epoch {number}/{self._epochs}" if by_epochs else f"step {number}/{self._schedule.length}"
        world.log_to_driver(f"{place} in {seconds:.1f} s: {described(metrics)}")


def described(metrics: Mapping[str, float]) -> str:
    """Writes metrics as a line of a log."""
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def average_statistics(model: keras.Model) -> None:
    """Averages over ranks the weights that no gradient trains and that are real numbers; seeds and counters stay."""
    if world.size() == 1:
        return
    variables = [v for v in model.non_trainable_variables if tf.as_dtype(v.dtype).is_floating]
    if not variables:
        return
    averages = world.grouped_allreduce([v.value for v in variables], name="lakelens.statistics")
    for variable, average in zip(variables, averages, strict=True):
        variable.assign(average)


def count_rows(dataset: tf.data.Dataset) -> tuple[int, int]:
    """Counts, in one pass over (images, labels, weights), rows of positive weight and batches that have some."""

    def add(counts: tuple[Any, Any], batch: tuple[Any, ...]) -> tuple[Any, Any]:
        real = tf.math.count_nonzero(batch[2] > 0, dtype=tf.int64)
        return counts[0] + real, counts[1] + tf.cast(real > 0, tf.int64)

    zero = tf.constant(0, tf.int64)
    rows, batches = dataset.reduce((zero, zero), add)
    return int(rows.numpy()), int(batches.numpy())


def _real_rows(images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    real = weights > 0
    return tf.boolean_mask(images, real), tf.boolean_mask(labels, real)


def _has_rows(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    return tf.shape(labels)[0] > 0
