"""The journal of a search: one JSON object per line and event, on disk before the event takes effect.

A search that was killed goes on from it: the searcher's answers follow from the events alone.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from ...errors import CheckpointError, InvalidArgumentError

JOURNAL_FOLDER = "journal"
EVENTS_FILE = "events.jsonl"


def journal_folder(root: Path, run_id: str) -> Path:
    """Gives the folder of a search's journal.

    Args:
        root: `checkpoint_storage.path`.
        run_id: The search's MLflow run.
    """
    return root / run_id / JOURNAL_FOLDER


class Journal:
    """Appends events. One process at a time holds it.

    Args:
        folder: Where `events.jsonl` lies; made when missing.

    Raises:
        InvalidArgumentError: If another process holds it.
        CheckpointError: If it cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / EVENTS_FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = self.path.open("ab")
        except OSError as error:
            raise CheckpointError(
                f"{folder} cannot be written ({error}); checkpoint_storage.path must be a folder that takes appends"
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise InvalidArgumentError(
                f"the search of {self.path} is running in another process; one process runs a search"
            ) from None
        self._cut_torn_line()
        _sync_folder(folder)

    def append(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Adds events; once this returns they are on disk.

        Raises:
            CheckpointError: If the disk refuses.
        """
        now = time.time()
        lines = [json.dumps({"event": event["event"], "time": now, **_plain(event)}) + "\n" for event in events]
        try:
            self._file.write("".join(lines).encode())
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise CheckpointError(
                f"{self.path} cannot be appended to ({error}); resume the search when it can"
            ) from error

    def close(self) -> None:
        """Lets another process hold it."""
        self._file.close()

    def _cut_torn_line(self) -> None:
        """Removes the beginning of a line whose writer was killed: it has not taken effect."""
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            self._file.truncate(whole)


def read_events(folder: Path) -> list[dict[str, Any]]:
    """Reads the events of a journal; a last line that is not complete is passed over.

    Raises:
        InvalidArgumentError: If there is none, or a line is no event.
    """
    path = folder / EVENTS_FILE
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    except FileNotFoundError:
        raise InvalidArgumentError(f"there is no journal {path}; is the run a search?") from None
    events = []
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line)
            event["event"], event["time"]
        except (ValueError, KeyError, TypeError):
            raise InvalidArgumentError(f"{path}, line {number} is no event: {line[:80]!r}") from None
        events.append(event)
    return events


def is_held(folder: Path) -> bool:
    """Tells whether a process runs the search of a journal."""
    try:
        with (folder / EVENTS_FILE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _plain(event: Mapping[str, Any]) -> dict[str, Any]:
    """Writes metrics that JSON lacks as text. Hyperparameters stay as they are, for text would be another value."""
    changed = dict(event)
    if "metric" in event:
        changed["metric"] = _number(event["metric"])
        changed["metrics"] = {name: _number(value) for name, value in event["metrics"].items()}
    return changed


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
