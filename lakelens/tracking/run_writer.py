"""Writes a job's MLflow run on the driver while the ranks train, from a file that outlives ranks, driver and server.

Rank 0 writes the file and the driver reads it, through the folder that both mount. Each record replaces the whole file:
what is mounted from Databricks (/dbfs, /Volumes) cannot append. Importing MLflow and opening a store take seconds; both
happen in a thread, while the ranks start.

MLflow's asynchronous logging (`log_batch(synchronous=False)`, mlflow 3.17) does not stop a training either, but its
records may be incomplete. Ten threads write the steps in any order. A batch that fails is dropped, and
`flush_async_logging` returns without an error. What waits lies in memory, and ends with the process.
"""

from __future__ import annotations

import contextlib
import json
import logging
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..errors import CheckpointError, TrackingError
from ..stores.data_files import write_bytes, write_files
from .heartbeat import HEARTBEAT_TAG, RENEW_S, Heartbeat
from .run_values import RunValues
from .runs import RunReference, as_tracking_errors, open_client

if TYPE_CHECKING:
    from mlflow import MlflowClient

RECORDS_FILE = "records.jsonl"


@dataclass(frozen=True)
class RunRecord:
    """Values that belong together."""

    metrics: Mapping[str, float] = field(default_factory=dict)  # Values by metric
    # The epoch that they are of, from 1; the training step where validations do not fall on ends of epochs
    step: int = 0
    params: Mapping[str, Any] = field(default_factory=dict)  # Parameters by name
    # When they were measured, in milliseconds since 1970. The same record written twice is one to MLflow
    time_ms: int = field(default_factory=lambda: int(time.time() * 1000))


class RecordFile:
    """Writes records, one JSON object per line; those that a folder holds already stay."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / RECORDS_FILE
        self._lines = [_line(record) for record in read_records(folder)]

    def read(self) -> list[RunRecord]:
        """Returns all records."""
        return [RunRecord(**json.loads(line)) for line in self._lines]

    def add(self, record: RunRecord) -> None:
        """Adds a record; once this returns it is on disk."""
        self._lines.append(_line(record))
        write_run_file(self.path, "".join(self._lines).encode())


def write_run_file(path: Path, data: bytes) -> None:
    """Writes a small file beside the checkpoints of a run, or in a folder there."""
    try:
        path.parent.mkdir(exist_ok=True)
        write_bytes(str(path), data, None)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written ({error}); complete checkpoints there stay. Free space, or give another folder"
        ) from error


def _line(record: RunRecord) -> str:
    return json.dumps(asdict(record), default=str) + "\n"


def read_records(folder: Path) -> list[RunRecord]:
    """Reads the records of a folder; empty before the first one."""
    try:
        lines = (folder / RECORDS_FILE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    return [RunRecord(**json.loads(line)) for line in lines]


def remove_records(folder: Path) -> None:
    """Removes the file of a folder, and partial files of a killed writer."""
    for file in [*folder.glob(f".{RECORDS_FILE}.*"), folder / RECORDS_FILE]:
        file.unlink(missing_ok=True)


logger = logging.getLogger(__name__)

# How long a store may refuse at the end of a job before the job gives up on it.
FINISH_S = 60.0
_POLL_S = 1.0
_RETRY_S = 5.0


class RunWriter:
    """Writes records into a run as they come, in their order, and renews the run's heartbeat."""

    # If the store does not answer, they stay in their file and are tried again; values that it refuses are warnings of
    # the run. As a context manager it ends the writing, after one more attempt if the body has failed.

    def __init__(
        self, run: RunReference, folder: Path, recorded: Collection[int] = (), alive: Callable[[], None] = lambda: None
    ) -> None:
        self._run = run
        self._recorded = frozenset(recorded)
        self._folder = folder
        self._alive = alive
        self._seen = 0
        self._values: RunValues | None = None
        self._tasks: deque[Callable[[MlflowClient, str], None]] = deque()
        self._error: Exception | None = None
        self._over = threading.Event()
        self._left = threading.Event()
        # Daemons: a call that hangs must not keep the interpreter.
        self._thread = threading.Thread(target=self._work, name="lakelens-tracking", daemon=True)
        # Apart from it: an upload may take longer than a heartbeat lasts.
        self._beats = threading.Thread(target=self._beat, name="lakelens-heartbeat", daemon=True)

    def __enter__(self) -> RunWriter:
        self._thread.start()
        self._beats.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()
        self._left.set()
        if error is not None and self._error is None:
            self._try()
        if not self._unwritten():
            remove_records(self._folder)

    def log(self, record: RunRecord) -> None:
        """Writes a record of the driver's own."""
        self.add(lambda client, run_id: self._write(self._values_in(client, run_id), record))

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Writes tags."""
        self.add(lambda client, run_id: self._values_in(client, run_id).set_tags(tags))

    def log_files(self, files: Mapping[str, bytes]) -> None:
        """Writes artifacts: contents by path."""
        if files:
            self.add(lambda client, run_id: log_files(client, run_id, files))

    def add(self, task: Callable[[MlflowClient, str], None]) -> None:
        """Lets a function write into the run after all records until then; `finish` may still call it again."""
        self._tasks.append(task)

    def finish(self) -> None:
        """Waits until everything is written, for a minute at most while the store refuses."""
        self._stop()
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

    def _beat(self) -> None:
        while not self._left.wait(RENEW_S):
            with contextlib.suppress(Exception):  # a store that does not answer is the other thread's to report
                open_client(self._run.tracking_uri).set_tag(self._run.run_id, HEARTBEAT_TAG, str(Heartbeat.now()))

    def _work(self) -> None:
        while not self._over.wait(_POLL_S if self._error is None else _RETRY_S):
            self._alive()
            self._try()

    def _try(self) -> bool:
        """Writes everything that waits; returns whether the store took it."""
        known = self._error
        try:
            with as_tracking_errors(self._run.tracking_uri, f"write into run {self._run.run_id}"):
                self._write_all()
        except Exception as error:  # noqa: BLE001  artifact stores raise their own SDKs' errors; `finish` raises it
            self._error = error
            if known is None:
                logger.warning("%s. %s; the training continues, and it is tried again", error, self._kept())
            return False
        self._error = None
        if known is not None:
            logger.warning("the MLflow store answers again; run %s has all records", self._run.run_id)
        return True

    def _write_all(self) -> None:
        records = read_records(self._folder)[self._seen :]
        if not records and not self._tasks:
            return
        client, run_id = open_client(self._run.tracking_uri), self._run.run_id
        for record in records:
            if not (record.metrics and record.step in self._recorded):
                self._write(self._values_in(client, run_id), record)
            self._seen += 1
        while self._tasks:
            self._tasks[0](client, run_id)
            self._tasks.popleft()

    def _values_in(self, client: MlflowClient, run_id: str) -> RunValues:
        if self._values is None:
            self._values = RunValues(client, run_id)
        return self._values

    def _write(self, values: RunValues, record: RunRecord) -> None:
        values.log_params(record.params)
        values.log_metrics(record.metrics, record.step, record.time_ms)

    def _unwritten(self) -> bool:
        return bool(self._tasks) or len(read_records(self._folder)) > self._seen


def log_files(client: MlflowClient, run_id: str, files: Mapping[str, bytes], place: str | None = None) -> None:
    """Writes artifacts of a run: contents by path, below the folder `place` of its artifacts."""
    with tempfile.TemporaryDirectory(prefix="lakelens-files-") as folder:
        write_files(Path(folder), files)
        client.log_artifacts(run_id, folder, place)
