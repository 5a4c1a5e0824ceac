"""What happens at the end of an epoch, on every rank alike: validate, agree on the metrics, keep the best, report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from ...tracking.run_records import RecordFile, RunRecord
from .. import distributed as world
from ..checkpoints.checkpoint import Checkpoint, remove_checkpoint
from ..checkpoints.retention import CheckpointRecord, Retention, checkpoints_to_keep
from ..trials.metrics import Goal, RankMetrics, mean_over_ranks


class SharedStatistics(keras.callbacks.Callback):
    """Averages over ranks what no gradient trains, such as the moving means of batch normalisation.

    Comes before whatever measures or saves the model, so that all ranks have one and the same.
    """

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Averages."""
        average_statistics(self.model)


class Validation(keras.callbacks.Callback):
    """Measures the model on this rank's validation rows and adds the mean over all ranks to the logs, as `val_...`.

    Args:
        dataset: Batches (images, labels, weights); rows of weight 0 are left out.
        rows: Rows of positive weight in it.
        batches: Batches in it that have such rows.
    """

    def __init__(self, dataset: tf.data.Dataset, rows: int, batches: int) -> None:
        super().__init__()
        real = dataset.map(_real_rows).filter(_has_rows)
        # Without a known end Keras warns after each pass that the data ran out.
        self._dataset = real.apply(tf.data.experimental.assert_cardinality(batches)) if rows else None
        self._rows = rows

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Validates."""
        values: dict[str, float] = {}
        if self._dataset is not None:
            values = self.model.evaluate(self._dataset, return_dict=True, verbose=0)
        mine = RankMetrics(self._rows, {f"val_{name}": float(value) for name, value in values.items()})
        everyone = world.allgather_object(mine, name="lakelens.validation")
        if logs is not None:
            logs.update(mean_over_ranks(everyone))


class WholeLoss(keras.callbacks.Callback):
    """Corrects the training loss for the rows of weight zero that fill the last batch: Keras counts them as rows.

    Args:
        factor: Rows that Keras counts in an epoch over rows that there are.
    """

    def __init__(self, factor: float) -> None:
        super().__init__()
        self._factor = factor

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Corrects, unless a part of the loss belongs to weights rather than rows (regularisation)."""
        if logs is not None and "loss" in logs and not self.model.losses:
            logs["loss"] = float(logs["loss"]) * self._factor


class KeepBest(keras.callbacks.Callback):
    """Remembers the best epoch, and on rank 0 keeps its checkpoint.

    Args:
        goal: What decides.
        save: Writes the model as a checkpoint, given the epoch (from 1) and its metrics; None on ranks that write none.
    """

    def __init__(self, goal: Goal, save: Callable[[int, dict[str, float]], Checkpoint] | None) -> None:
        super().__init__()
        self._goal = goal
        self._save = save
        self._saved: dict[str, tuple[Checkpoint, float]] = {}
        self.best: float | None = None
        self.best_epoch = 0
        self.best_metrics: dict[str, float] = {}
        self.checkpoint: Checkpoint | None = None

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Compares this epoch with the best one."""
        metrics = {name: float(value) for name, value in (logs or {}).items()}
        value = self._goal.value_in(metrics)
        if not self._goal.is_better(value, self.best):
            return
        self.best, self.best_epoch, self.best_metrics = value, epoch + 1, metrics
        if self._save is not None:
            self.checkpoint = self._save(epoch + 1, metrics)
            self._saved[self.checkpoint.name] = (self.checkpoint, value)
            self._forget_others()

    def _forget_others(self) -> None:
        records = [
            CheckpointRecord(name, 0, int(saved.metadata["epoch"]), value)
            for name, (saved, value) in self._saved.items()
        ]
        kept = checkpoints_to_keep(records, Retention(), smaller_is_better=self._goal.mode == "min")
        for name in self._saved.keys() - kept:
            remove_checkpoint(self._saved.pop(name)[0])


class Report(keras.callbacks.Callback):
    """Records each epoch's metrics and sends a line to the driver, from rank 0.

    Comes before the checkpoint of the epoch is written, so that an epoch is known from when it has been measured.

    Args:
        epochs: Epochs that are planned.
        records: Where the driver reads them.
    """

    def __init__(self, epochs: int, records: RecordFile) -> None:
        super().__init__()
        self._epochs = epochs
        self._records = records
        self._started = 0.0

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Starts the clock."""
        self._started = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Reports."""
        metrics = {name: float(value) for name, value in (logs or {}).items()}
        seconds = time.perf_counter() - self._started
        self._records.add(RunRecord({**metrics, "epoch_seconds": seconds}, epoch + 1))
        world.log_to_driver(f"epoch {epoch + 1}/{self._epochs} in {seconds:.1f} s: {described(metrics)}")


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
