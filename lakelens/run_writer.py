"""What rank 0 writes into its job's MLflow run, without training having to wait for it.

Importing MLflow and opening a store take seconds; both happen in a thread, while the first epoch runs.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .errors import TrackingError
from .tracking import (
    TAG_LIMIT,
    RunReference,
    as_tracking_errors,
    local_store_path,
    log_params,
    open_client,
    without_password,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient

# Long enough for a checkpoint's upload at 10 MB/s, short enough that a dead store does not keep ranks and slots.
_CLOSE_TIMEOUT_S = 300.0


class RunWriter:
    """Writes into a run from a background thread, in the order of the calls.

    The first thing that the store refuses ends the writing; `close` raises it. Importing MLflow happens in the thread.

    Args:
        run: The run to attach to.

    Attributes:
        run: The run that is written to.
    """

    def __init__(self, run: RunReference) -> None:
        self.run = run
        self._tasks: queue.Queue[Callable[[MlflowClient], None] | None] = queue.Queue()
        self._error: Exception | None = None
        # A daemon: a rank that dies of another error must not wait for the store.
        self._thread = threading.Thread(target=self._work, name="lakelens-tracking", daemon=True)
        self._thread.start()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.leave()

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Writes one value per metric for a step."""
        from_now = int(time.time() * 1000)
        values = {name: float(value) for name, value in metrics.items()}

        def write(client: MlflowClient) -> None:
            from mlflow.entities import Metric

            client.log_batch(self.run.run_id, metrics=[Metric(name, v, from_now, step) for name, v in values.items()])

        self._tasks.put(write)

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Writes parameters; one that is there already must have the same value."""
        self._tasks.put(lambda client: log_params(client, self.run.run_id, params))

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Writes tags."""

        def write(client: MlflowClient) -> None:
            for name, value in tags.items():
                client.set_tag(self.run.run_id, name, value[:TAG_LIMIT])

        self._tasks.put(write)

    def log_folder(self, folder: Path, artifact_path: str) -> None:
        """Copies the files of a folder to an artifact folder of the run."""
        self._tasks.put(lambda client: client.log_artifacts(self.run.run_id, str(folder), artifact_path))

    def close(self, timeout_s: float = _CLOSE_TIMEOUT_S) -> None:
        """Waits until everything is written.

        Raises:
            TrackingError: If the store refused something, or did not answer in time.
        """
        self._tasks.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            store = without_password(self.run.tracking_uri)
            raise TrackingError(f"{store} did not take the run's values within {timeout_s:.0f} s")
        if self._error is not None:
            raise self._error

    def leave(self) -> None:
        """Lets the thread end after what it was given, and does not wait for it; for a job that has failed."""
        self._tasks.put(None)

    def _work(self) -> None:
        try:
            with as_tracking_errors(self.run.tracking_uri, f"write into run {self.run.run_id}"):
                client = attach(self.run)
                while (task := self._tasks.get()) is not None:
                    task(client)
        except Exception as error:  # noqa: BLE001  close() raises it in the caller's thread
            self._error = error


def attach(run: RunReference) -> MlflowClient:
    """Opens the store of a run from another process and checks that the run is in it.

    Raises:
        TrackingError: If it is not, as on a machine that has not the driver's files.
    """
    store = local_store_path(run.tracking_uri)
    here = socket.gethostname()
    unreachable = TrackingError(
        f"rank 0 on {here} finds no run {run.run_id} in {without_password(run.tracking_uri)}, which the driver on "
        f"{run.created_on} wrote to. That store is a file on one machine: set MLFLOW_TRACKING_URI to a tracking server "
        "that both reach, or train with np < 0."
    )
    if store is not None and not store.exists():
        raise unreachable
    client = open_client(run.tracking_uri)
    from mlflow.exceptions import MlflowException

    try:
        client.get_run(run.run_id)
    except MlflowException as error:
        raise unreachable if store is not None else error from error
    return client
