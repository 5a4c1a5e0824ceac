"""Reports the metrics and the progress of a training, on rank 0."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...tracking.run_writer import RecordFile, RunRecord
from ..rank import process_context
from ..rank.process_context import log_to_driver
from .pace import FeedTimes, SystemMetrics
from .schedule import Schedule

if TYPE_CHECKING:
    from .job import TrainingJob

_PULSE_S = 1.0


class Report:
    """Records metrics and sends a line to the driver, on rank 0."""

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
        place = f"epoch {number}/{self._schedule.epochs}" if by_epochs else f"step {number}/{self._schedule.length}"
        log_to_driver(f"{place} in {seconds:.1f} s: {described(metrics)}")

    def _rows(self, step: int) -> int:
        """Counts the trained rows of all ranks after a step."""
        feed, an_epoch = self._job.training_feed, self._schedule.steps_per_epoch
        return step // an_epoch * feed.rows + min(step % an_epoch * self._job.config.global_batch_size, feed.rows)


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
