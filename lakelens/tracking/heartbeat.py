"""The heartbeat of a process that keeps an MLflow run open: a tag that it renews, and that other processes read."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from ..errors import TrackingError
from ..liveness import Process

if TYPE_CHECKING:
    from mlflow import MlflowClient

logger = logging.getLogger(__name__)

HEARTBEAT_TAG = "lakelens.tracking.heartbeat"
FAILURE_TAG = "lakelens.failure"
RENEW_S = 60.0
LOST_AFTER_S = 600.0


@dataclass(frozen=True)
class Heartbeat:
    """Which process was alive when."""

    process: Process  # The process
    time: float  # Seconds since 1970 by its clock

    @classmethod
    def now(cls) -> Heartbeat:
        """Returns the one of this process."""
        return cls(Process.this(), time.time())

    @classmethod
    def parse(cls, text: str | None) -> Heartbeat | None:
        """Reads a tag; None for a text that is not a heartbeat."""
        try:
            given = json.loads(text or "")
            return cls(Process(**given["process"]), float(given["time"]))
        except (ValueError, TypeError, KeyError):
            return None

    def __str__(self) -> str:
        """Returns the tag's value."""
        return json.dumps(asdict(self))

    def lost(self, now: float) -> str | None:
        """Returns why the process no longer keeps its run, seen from this process; None while it may."""
        if self.process.is_running() is False:
            return f"{self.process}, which kept this run, is gone"
        if now - self.time >= LOST_AFTER_S:
            minutes = (now - self.time) / 60
            return f"{self.process}, which kept this run, has given no sign of life for {minutes:.0f} minutes"
        return None


def end_lost_runs(client: MlflowClient, experiment_id: str) -> None:
    """Marks the runs of an experiment FAILED whose driver was killed, if the store lets it; see `Heartbeat.lost`."""
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
