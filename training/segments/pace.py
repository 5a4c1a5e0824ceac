"""How fast a rank trains, how long it waits for its feed, and how busy its machine is meanwhile."""

from __future__ import annotations

import threading
import time
from typing import Any

_MEGABYTE = 1e6
_SAMPLE_S = 5.0


class Pace:
    """Measures a stretch of training at a time.

    Args:
        rows: Rows that have been trained, over all ranks.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._waited_s = 0.0
        self._began = time.perf_counter()

    def begin(self) -> None:
        """Begins a stretch: what has passed since the last one was no training."""
        self._waited_s = 0.0
        self._began = time.perf_counter()

    def waited(self, seconds: float) -> None:
        """Notes that the step in progress has waited for its batch."""
        self._waited_s += seconds

    def trained(self, rows: int) -> dict[str, float]:
        """Ends the stretch.

        Args:
            rows: Rows that have been trained by now, over all ranks.

        Returns:
            `images_per_second` over all ranks, and `feed_wait_share`, the part of its time that this rank has waited.
        """
        seconds = max(time.perf_counter() - self._began, 1e-9)
        found = {"images_per_second": (rows - self._rows) / seconds, "feed_wait_share": self._waited_s / seconds}
        self._rows = rows
        self.begin()
        return found


class SystemMetrics:
    """Samples this machine in a thread: processors, memory, network, GPUs; the names are those of MLflow.

    GPUs need the package nvidia-ml-py.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples: list[dict[str, float]] = []
        self._over = threading.Event()
        self._nvml = _nvml()
        self._network = _network()
        _processors()  # counts from here on
        self._thread = threading.Thread(target=self._work, name="lakelens-system-metrics", daemon=True)
        self._thread.start()

    def take(self) -> dict[str, float]:
        """Returns the means since the last call; of the network the megabytes."""
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
        import psutil

        memory = psutil.virtual_memory()
        found = {
            "system/cpu_utilization_percentage": _processors(),
            "system/system_memory_usage_megabytes": memory.used / _MEGABYTE,
            "system/system_memory_usage_percentage": float(memory.percent),
        }
        return found | (_gpus(self._nvml) if self._nvml is not None else {})


def _processors() -> float:
    import psutil

    return float(psutil.cpu_percent())


def _network() -> dict[str, float]:
    import psutil

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
