"""The metrics and parameters of a job, in a file that outlives its ranks, its driver and a silent server.

Rank 0 writes the file and the driver reads it, through the folder that both mount. Each record replaces the whole file:
what is mounted from Databricks (/dbfs, /Volumes) cannot append.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ..stores.data_files import write_bytes

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
