"""The sign of life of a process that keeps an MLflow run open: a tag that it renews, and that others judge it by."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import TrackingError

if TYPE_CHECKING:
    from mlflow import MlflowClient

logger = logging.getLogger(__name__)

HEARTBEAT_TAG = "lakelens.tracking.heartbeat"
FAILURE_TAG = "lakelens.failure"
RENEW_S = 60.0
LOST_AFTER_S = 600.0


@dataclass(frozen=True)
class Heartbeat:
    """Which process was alive when.

    Attributes:
        host: Name of its host.
        machine: Tells apart hosts of one name, starts of one host, and containers that count processes by themselves.
        pid: Its process id.
        started: When it started, in clock ticks since the machine did: ids are used again. 0 where unknown.
        time: Seconds since 1970 by its clock.
    """

    host: str
    machine: str
    pid: int
    started: int
    time: float

    @classmethod
    def now(cls) -> Heartbeat:
        """Returns the one of this process."""
        pid = os.getpid()
        return cls(socket.gethostname(), _machine(), pid, _start_of(pid) or 0, time.time())

    @classmethod
    def parse(cls, text: str | None) -> Heartbeat | None:
        """Reads a tag; None for what is none."""
        try:
            return cls(**json.loads(text or ""))
        except (ValueError, TypeError):
            return None

    def __str__(self) -> str:
        """Returns the tag's value."""
        return json.dumps(asdict(self))

    def lost(self, now: float) -> str | None:
        """Says why the process no longer keeps its run, seen from this process; None while it may.

        Args:
            now: Seconds since 1970.
        """
        process = f"process {self.pid} on {self.host}"
        if self.started and self.machine == _machine() and _start_of(self.pid) != self.started:
            return f"{process}, which kept this run, is gone"
        if now - self.time >= LOST_AFTER_S:
            return f"{process}, which kept this run, has given no sign of life for {(now - self.time) / 60:.0f} minutes"
        return None


def end_lost_runs(client: MlflowClient, experiment_id: str) -> None:
    """Marks the runs of an experiment FAILED whose driver was killed, so that it could not do so itself.

    A run is lost when its heartbeat is of a process of this machine that is gone, or is ten minutes old. A store that
    does not let runs be marked keeps them as they are.

    Raises:
        TrackingError: If the store does not answer.
    """
    try:
        for run in client.search_runs([experiment_id], "attributes.status = 'RUNNING'"):
            heartbeat = Heartbeat.parse(run.data.tags.get(HEARTBEAT_TAG))
            reason = heartbeat.lost(time.time()) if heartbeat is not None else None
            if heartbeat is None or reason is None:
                continue
            client.set_tag(run.info.run_id, FAILURE_TAG, reason)
            client.set_terminated(run.info.run_id, "FAILED", end_time=int(heartbeat.time * 1000))
            logger.warning("run %s is marked FAILED: %s", run.info.run_id, reason)
    except TrackingError:
        raise
    except Exception as error:  # noqa: BLE001  what the caller wants of the store is another thing
        logger.warning("runs whose driver is gone could not be marked FAILED: %s", error)


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{socket.gethostname()} {boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:  # no Linux: only the age of a heartbeat tells
        return ""


def _start_of(pid: int) -> int | None:
    """When a process started, in clock ticks; None for none and for one that has ended and was not yet waited for."""
    try:
        # The name of the program, in brackets, may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])
