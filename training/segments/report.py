"""Reports the metrics, the progress and the pace of a training, on rank 0: its waits, its work, a busy machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

from ...tracking.run_writer import RecordFile, RunRecord
from ..rank import process_context
from ..rank.process_context import log_to_driver
from .job import Schedule

if TYPE_CHECKING:
    from .job import TrainingJob

_MEGABYTE = 1e6
_SAMPLE_S, _PULSE_S = 5.0, 1.0


class FeedTimes(NamedTuple):
    """Seconds of a stretch of training on one rank."""

    wait: float  # Between a request for a batch and its arrival
    compute: float  # Between a batch's arrival and the next request: the steps, with their waiting for other ranks

    def metrics(self, rank: int) -> dict[str, float]:
        """Names the seconds as they are recorded."""
        return {f"feed_wait_seconds_rank{rank}": self.wait, f"compute_seconds_rank{rank}": self.compute}


class Pace:
    """Measures a stretch of training at a time, on one rank, by a clock that gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """Begins a stretch: what has passed since the last one was not training."""
        self._waited_s = 0.0
        self._began = self._clock()

    def waited(self, seconds: float) -> None:
        """Records that the current step has waited for its batch."""
        self._waited_s += seconds

    def left_out(self, seconds: float) -> None:
        """Leaves out seconds that were not training."""
        self._began += seconds

    def ended(self) -> FeedTimes:
        """Ends the stretch."""
        return FeedTimes(self._waited_s, max(self._clock() - self._began - self._waited_s, 1e-9))


class SystemMetrics:
    """Samples processors, memory, network and GPUs in a thread, with MLflow's names; GPUs need nvidia-ml-py."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples: list[dict[str, float]] = []
        self._over = threading.Event()
        self._nvml = _nvml()
        self._network = _network()
        psutil.cpu_percent()  # counts from here on
        self._thread = threading.Thread(target=self._work, name="lakelens-system-metrics", daemon=True)
        self._thread.start()

    def take(self) -> dict[str, float]:
        """Returns the means since the last call; for the network the megabytes."""
        with self._lock:
            samples, self._samples = [*self._samples, self._sample()], []
        now, before = _network(), self._network
        self._network = now
        found = {name: sum(each[name] for each in samples) / len(samples) for name in samples[0]}
        return found | {name: now[name] - before[name] for name in now}

    def close(self) -> None:
        """Ends the sampling."""
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._over.wait(_SAMPLE_S):
            with self._lock:
                self._samples.append(self._sample())

    def _sample(self) -> dict[str, float]:
        memory = psutil.virtual_memory()
        found = {
            "system/cpu_utilization_percentage": psutil.cpu_percent(),
            "system/system_memory_usage_megabytes": memory.used / _MEGABYTE,
            "system/system_memory_usage_percentage": float(memory.percent),
        }
        return found | (_gpus(self._nvml) if self._nvml is not None else {})


def _network() -> dict[str, float]:
    counters: Any = psutil.net_io_counters()
    if counters is None:  # a container without interfaces
        return {}
    return {
        "system/network_receive_megabytes": counters.bytes_recv / _MEGABYTE,
        "system/network_transmit_megabytes": counters.bytes_sent / _MEGABYTE,
    }


def _nvml() -> Any | None:
    try:
        import pynvml  # type: ignore[import-not-found, unused-ignore]

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001  no package, no driver, no rights: training does not depend on it
        return None
    return pynvml


def _gpus(nvml: Any) -> dict[str, float]:
    found: dict[str, float] = {}
    for number in range(nvml.nvmlDeviceGetCount()):
        device = nvml.nvmlDeviceGetHandleByIndex(number)
        memory, name = nvml.nvmlDeviceGetMemoryInfo(device), f"system/gpu_{number}"
        found[f"{name}_utilization_percentage"] = float(nvml.nvmlDeviceGetUtilizationRates(device).gpu)
        found[f"{name}_memory_usage_megabytes"] = memory.used / _MEGABYTE
        found[f"{name}_memory_usage_percentage"] = 100 * memory.used / memory.total
    return found


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
