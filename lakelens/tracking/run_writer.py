"""What the driver writes into its job's MLflow run while the ranks train: none of them waits for the store or needs it.

Importing MLflow and opening a store take seconds; both happen in a thread, while the ranks start.
"""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ..errors import TrackingError
from .heartbeat import HEARTBEAT_TAG, RENEW_S, Heartbeat
from .logged_models import ModelFolder, log_model
from .run_records import RECORDS_FILE, RunRecord, read_records, remove_records
from .runs import TAG_LIMIT, RunReference, as_tracking_errors, log_params, open_client

if TYPE_CHECKING:
    from mlflow import MlflowClient

logger = logging.getLogger(__name__)

# How long a store may refuse at the end of a job before the job gives up on it.
FINISH_S = 60.0
_POLL_S = 1.0
_RETRY_S = 5.0


class RunWriter:
    """Writes records into a run as they come, in their order, and renews the run's heartbeat.

    While the store does not take them they stay in their file, and are tried again. Use as a context manager: leaving
    it ends the writing, after one more attempt where the body has failed.

    Args:
        run: The run.
        folder: Where the job's records come in (`run_records`).
        recorded: Steps whose metrics the run has already, from before it was resumed; records of these are skipped.
        alive: Is called every few seconds meanwhile.
    """

    def __init__(
        self,
        run: RunReference,
        folder: Path,
        recorded: Collection[int] = (),
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self._run = run
        self._recorded = frozenset(recorded)
        self._folder = folder
        self._alive = alive
        self._seen = 0
        self._tasks: deque[Callable[[MlflowClient], None]] = deque()
        self._last: list[Callable[[MlflowClient], None]] = []
        self._beat_at = time.monotonic() + RENEW_S
        self._error: Exception | None = None
        self._over = threading.Event()
        # A daemon: a call that hangs must not keep the interpreter.
        self._thread = threading.Thread(target=self._work, name="lakelens-tracking", daemon=True)

    def __enter__(self) -> RunWriter:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()
        if error is not None and self._error is None:
            self._try()
        if not self._unwritten():
            remove_records(self._folder)

    def log(self, record: RunRecord) -> None:
        """Writes a record of the driver's own."""
        self._tasks.append(lambda client: _write(client, self._run.run_id, record))

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Writes tags."""

        def write(client: MlflowClient) -> None:
            for name, value in tags.items():
                client.set_tag(self._run.run_id, name, value[:TAG_LIMIT])

        self._tasks.append(write)

    def log_folder(self, folder: Path, artifact_path: str) -> None:
        """Copies the files of a folder to an artifact folder of the run."""
        self._tasks.append(lambda client: client.log_artifacts(self._run.run_id, str(folder), artifact_path))

    def log_files(self, files: Mapping[str, bytes]) -> None:
        """Writes artifacts: contents by path."""
        if files:
            self._tasks.append(lambda client: _log_files(client, self._run.run_id, files))

    def at_end(self, task: Callable[[MlflowClient, str], None]) -> None:
        """Lets `finish` call a function with a client and the run's id once all records are written.

        It may be called again where the store refuses.
        """
        self._last.append(lambda client: task(client, self._run.run_id))

    def log_model(self, folder: ModelFolder, step: int) -> None:
        """Logs a folder as the run's MLflow model; it must be there until `finish` returns."""
        self._tasks.append(lambda client: _log_model(client, self._run.run_id, folder, step))

    def finish(self) -> None:
        """Waits until everything is written, for a minute at most while the store refuses.

        Raises:
            TrackingError: If the store did not take it; names the file that keeps the records.
        """
        self._stop()
        self._take_records()
        self._tasks.extend(self._last)
        self._last.clear()
        deadline = time.monotonic() + FINISH_S
        while not self._try():
            if time.monotonic() >= deadline:
                raise TrackingError(f"{self._error}. {self._kept()}")
            time.sleep(_RETRY_S)

    def _kept(self) -> str:
        return f"What the run lacks is in {self._folder / RECORDS_FILE}"

    def _stop(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()  # each call to the store has an end

    def _work(self) -> None:
        while not self._over.wait(_POLL_S if self._error is None else _RETRY_S):
            self._alive()
            self._try()

    def _try(self) -> bool:
        """Writes what there is; tells whether the store took it."""
        known = self._error
        try:
            with as_tracking_errors(self._run.tracking_uri, f"write into run {self._run.run_id}"):
                self._write_all()
        except Exception as error:  # noqa: BLE001  artifact stores raise their own SDKs' errors; `finish` raises it
            self._error = error
            if known is None:
                logger.warning("%s. %s; it is tried again, and the training goes on", error, self._kept())
            return False
        self._error = None
        if known is not None:
            logger.warning("the MLflow store answers again; run %s has what it lacked", self._run.run_id)
        return True

    def _write_all(self) -> None:
        self._take_records()
        beats = time.monotonic() >= self._beat_at
        if not self._tasks and not beats:
            return
        client = open_client(self._run.tracking_uri, large_artifacts=True)
        while self._tasks:
            self._tasks[0](client)
            self._tasks.popleft()
        if beats:
            client.set_tag(self._run.run_id, HEARTBEAT_TAG, str(Heartbeat.now()))
            self._beat_at = time.monotonic() + RENEW_S

    def _take_records(self) -> None:
        records = read_records(self._folder)
        for record in records[self._seen :]:
            if not (record.metrics and record.step in self._recorded):
                self.log(record)
        self._seen = len(records)

    def _unwritten(self) -> bool:
        return bool(self._tasks) or len(read_records(self._folder)) > self._seen


def _log_model(client: MlflowClient, run_id: str, folder: ModelFolder, step: int) -> None:
    log_model(client, run_id, folder, step)


def _log_files(client: MlflowClient, run_id: str, files: Mapping[str, bytes]) -> None:
    with tempfile.TemporaryDirectory(prefix="lakelens-files-") as place:
        for name, content in files.items():
            path = Path(place, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        client.log_artifacts(run_id, place)


def _write(client: MlflowClient, run_id: str, record: RunRecord) -> None:
    from mlflow.entities import Metric

    log_params(client, run_id, record.params)
    metrics = [Metric(name, float(value), record.time_ms, record.step) for name, value in record.metrics.items()]
    if metrics:
        client.log_batch(run_id, metrics=metrics, synchronous=True)
