"""Measures and records at the boundaries of a training, on every rank."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from ...errors import NotFiniteError
from ...tracking.run_records import RecordFile, RunRecord
from .. import distributed as world
from ..rank import process_context
from .metric_sums import metrics_over_ranks
from .noise import copies_of
from .pace import FeedTimes, SystemMetrics
from .rank_state import statistics_of
from .real_rows import rows_where
from .schedule import Schedule

if TYPE_CHECKING:
    from ..tasks.task import Counts, Task
    from .job import TrainingJob

_PULSE_S = 1.0


class Validation:
    """Measures the model on the validation rows of all ranks.

    Args:
        dataset: This rank's batches (images, labels, weights); rows of weight 0 are left out, other weights count.
        rows: Rows of positive weight in it.
        batches: Batches in it with such rows.
    """

    def __init__(self, dataset: tf.data.Dataset, rows: int, batches: int) -> None:
        real = dataset.map(lambda *batch: rows_where(batch[2] > 0, batch)).filter(_has_rows)
        # Without a known length Keras warns after each epoch that the data ran out.
        self._dataset = real.apply(tf.data.experimental.assert_cardinality(batches)) if rows else None
        self._rows = rows

    def measure(self, model: keras.Model) -> dict[str, float]:
        """Returns each metric over the rows of all ranks, as `val_...`; the model's running metrics stay unchanged."""
        running = [(copy, np.asarray(copy)) for variable in model.metrics_variables for copy in copies_of(variable)]
        model.reset_metrics()  # a rank without rows adds nothing
        values: dict[str, Any] = {}
        if self._dataset is not None:
            values = model.evaluate(self._dataset, return_dict=True, verbose=0)
        measured = metrics_over_ranks(model, values, self._rows)
        for copy, value in running:
            copy.assign(value)
        return {f"val_{name}": value for name, value in measured.items()}

    def count(self, model: keras.Model, task: Task, described: Mapping[str, Any]) -> Counts:
        """Counts for the task's evaluation, on the rows of this rank.

        Raises:
            NotFiniteError: If the model gives NaN or infinity for a row.
            TrialError: If the model or the labels do not fit the task.
        """
        run = tf.function(lambda images: model(images, training=False), reduce_retracing=True)
        counts = task.no_counts()
        for images, labels, _ in self._dataset if self._dataset is not None else ():
            outputs, given = tf.nest.map_structure(np.asarray, (run(images), labels))
            if not all(np.isfinite(part).all() for part in tf.nest.flatten(outputs)):
                raise NotFiniteError("output is NaN or infinite for validation rows")
            for name, found in task.count(outputs, given, described).items():
                counts[name] = counts[name] + found
        return counts


class Report:
    """Records metrics and sends a line to the driver, on rank 0.

    Args:
        records: The file that the driver reads.
        schedule: Whether epochs or steps are counted.
        job: The training job.
        step: The step after which training continues.
    """

    def __init__(self, records: RecordFile, schedule: Schedule, job: TrainingJob, step: int) -> None:
        self._records = records
        self._schedule = schedule
        self._job = job
        self._known = {record.step for record in records.read() if record.metrics}
        self._started = time.perf_counter()
        self._trained_rows = self._rows(step)
        self._measured: dict[str, float] = {}
        self._system = SystemMetrics()

    def begin(self) -> None:
        """Starts the clock of an epoch."""
        self._started = time.perf_counter()

    def trained(self, step: int, times: Sequence[FeedTimes]) -> None:
        """Notes that a stretch of training has ended after a step, and what it took on each rank."""
        rows = self._rows(step)
        self._measured = {"images_per_second": (rows - self._trained_rows) / sum(times[0])}
        for rank, taken in enumerate(times):
            self._measured |= taken.metrics(rank)
        self._trained_rows = rows

    def close(self) -> None:
        """Ends the sampling of the machine."""
        self._system.close()

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Reports the metrics after a step; existing records of an earlier segment stay."""
        seconds = time.perf_counter() - self._started
        number = self._schedule.recorded_as(step)
        by_epochs = self._schedule.counts_epochs
        if number not in self._known:
            timed = {"epoch_seconds": seconds} if by_epochs else {}
            self._records.add(RunRecord({**metrics, **timed, **self._measured, **self._system.take()}, number))
            self._known.add(number)
        place = f"epoch {number}/{self._job.epochs}" if by_epochs else f"step {number}/{self._schedule.length}"
        world.log_to_driver(f"{place} in {seconds:.1f} s: {described(metrics)}")

    def _rows(self, step: int) -> int:
        """Counts the trained rows of all ranks after a step."""
        feed, an_epoch = self._job.training_feed, self._schedule.steps_per_epoch
        return step // an_epoch * feed.rows + min(step % an_epoch * self._job.batch_size, feed.rows)


class Pulse:
    """Reports the current step to the driver, on rank 0, at most once a second."""

    def __init__(self) -> None:
        self._due = 0.0

    def reached(self, step: int) -> None:
        """Records a step."""
        now = time.perf_counter()
        if now >= self._due:
            self._due = now + _PULSE_S
            process_context.report({"progress": {"step": step}})


def described(metrics: Mapping[str, float]) -> str:
    """Writes metrics as a line of a log."""
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())


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
