"""Writes the lines and messages that the driver had no time to print into a file."""

from __future__ import annotations

import re
import tempfile
import threading
from pathlib import Path
from typing import IO

from ..processes.rank_process import append
from ..processes.rank_record import RankEvent

_NOT_IN_NAMES = re.compile(r"[^\w.-]+")


class SkippedOutput:
    """Writes skipped output into a file in the folder for temporary files, created with the first line.

    Ranks never wait for a slow or stopped terminal, and none of their output is lost.

    Args:
        name: The job's name, for the file's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None
        self._problem: OSError | None = None
        self._kept = self._lost = 0

    def keep(self, event: RankEvent) -> None:
        """Writes a line or a message into the file, from any thread."""
        text = event.data["text"]
        shown = text if event.kind == "message" else f"[{event.rank}]<{event.data['stream']}> {text}"
        with self._lock:
            try:
                append(self._open(), f"{shown}\n".encode("utf-8", "backslashreplace"))
                self._kept += 1
            except OSError as error:
                self._problem = error
                self._lost += 1

    def _open(self) -> IO[bytes]:
        if self._file is None:
            prefix = f"lakelens-{_NOT_IN_NAMES.sub('-', self._name)[:60]}-"
            self._file = tempfile.NamedTemporaryFile(prefix=prefix, suffix=".log", delete=False, buffering=0)  # noqa: SIM115
        return self._file

    def take_notice(self) -> str | None:
        """Reports how many lines were skipped since the last call and their file; None if there were none."""
        with self._lock:
            kept, lost, self._kept, self._lost = self._kept, self._lost, 0, 0
            path = None if self._file is None else Path(self._file.name)
        if kept == lost == 0:
            return None
        notice = f"{self._name}: ranks write faster than the driver prints; "
        if kept:
            notice += f"{kept} lines and messages were not shown, and are in {path}"
        if lost:
            notice += (
                f"{'; ' if kept else ''}{lost} were lost: the folder for temporary files takes no more "
                f"({self._problem}); free space there, or set TMPDIR to another folder"
            )
        return notice

    def close(self) -> None:
        """Closes the file, which stays."""
        if self._file is not None:
            self._file.close()
