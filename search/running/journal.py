"""The journal of a search: one JSON object per line and event, on disk before the event takes effect.

A killed search resumes from it, because the searcher's answers depend on the events alone. On file systems without
appends, such as Databricks' volumes, each event rewrites the file and a separate file is the lock.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from ...errors import CheckpointError, InvalidArgumentError
from ...liveness import Process
from ...stores.data_files import write_bytes

JOURNAL_FOLDER = "journal"
EVENTS_FILE = "events.jsonl"
LOCK_FILE = "events.lock"
# Errors of file systems without appends or locks; others are faults. Databricks' volumes cannot seek to the end.
_HAS_NONE = {errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL, errno.ENOLCK, errno.ESPIPE}


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
        self._file: IO[bytes] | None = None  # None: each event rewrites the file
        self._lock: Path | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if _takes_appends(folder):
                self._file = self.path.open("ab")
            self._hold()
            self._content = self._whole_lines()
            _sync_folder(folder)
        except OSError as error:
            self.close()
            raise CheckpointError(
                f"{folder} cannot be written ({error}); checkpoint_storage.path must be a writable folder"
            ) from error

    def append(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Adds events; once this returns they are on disk.

        Raises:
            CheckpointError: If the disk refuses.
        """
        now = time.time()
        lines = [json.dumps({"event": event["event"], "time": now, **_plain(event)}) + "\n" for event in events]
        added = "".join(lines).encode()
        try:
            if self._file is None:
                write_bytes(str(self.path), self._content + added, None)
                self._content += added
            else:
                self._file.write(added)
                self._file.flush()
                os.fsync(self._file.fileno())
        except OSError as error:
            raise CheckpointError(
                f"{self.path} cannot be appended to ({error}); resume the search when it can"
            ) from error

    def close(self) -> None:
        """Lets another process hold it."""
        if self._file is not None:
            self._file.close()
        if self._lock is not None:
            self._lock.unlink(missing_ok=True)

    def _hold(self) -> None:
        """Takes the kernel's lock; makes a lock file if there are no locks, or if each event makes another file."""
        try:
            if self._file is not None:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
        except OSError as error:
            if error.errno not in _HAS_NONE:
                self.close()
                raise InvalidArgumentError(
                    f"the search of {self.path} is running in another process; one process runs a search"
                ) from None
        lock = self.path.with_name(LOCK_FILE)
        holder = _holder_of(lock)
        try:
            if holder is None:
                lock.unlink(missing_ok=True)
            with lock.open("x", encoding="utf-8") as file:
                json.dump(asdict(Process.this()), file)
        except FileExistsError:
            self.close()
            raise InvalidArgumentError(
                f"the search of {self.path} is running in {holder or 'another process'}; one process runs a search. If "
                f"that one has ended, remove {lock}"
            ) from None
        self._lock = lock

    def _whole_lines(self) -> bytes:
        """Removes an incomplete last line, whose writer was killed: it has not taken effect."""
        content = self.path.read_bytes() if self.path.exists() else b""
        whole = content.rfind(b"\n") + 1
        if self._file is not None and whole < len(content):
            self._file.truncate(whole)
        return content[:whole]


def read_events(folder: Path) -> list[dict[str, Any]]:
    """Reads the events of a journal; skips an incomplete last line.

    Raises:
        InvalidArgumentError: If the journal does not exist, or a line is not an event.
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
            raise InvalidArgumentError(f"{path}, line {number} is not an event: {line[:80]!r}") from None
        events.append(event)
    return events


def is_held(folder: Path) -> bool:
    """Returns whether a process runs the search of a journal."""
    if _holder_of(folder / LOCK_FILE) is not None:
        return True
    try:
        with (folder / EVENTS_FILE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError as error:
        return error.errno not in _HAS_NONE
    return False


def _takes_appends(folder: Path) -> bool:
    """Tries to append twice: some file systems refuse the second append, to an existing file."""
    probe = folder / f".{EVENTS_FILE}.{uuid.uuid4().hex}"
    try:
        for _ in range(2):
            with probe.open("ab") as file:
                file.write(b"\n")
    except OSError as error:
        if error.errno not in _HAS_NONE:
            raise
        return False
    finally:
        probe.unlink(missing_ok=True)
    return True


def _holder_of(lock: Path) -> str | None:
    """The process that a lock file is of; None without one, or if that process has ended on this machine."""
    try:
        text = lock.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        holder = Process(**json.loads(text))
    except (ValueError, TypeError):
        return "another process"  # which is writing it, or was killed then
    return None if holder.is_running() is False else str(holder)


def _plain(event: Mapping[str, Any]) -> dict[str, Any]:
    """Writes NaN and infinite metrics as text. Hyperparameters stay unchanged, because text would be another value."""
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
