"""What a launched process knows of its job, and its line to the supervisor. Imports nothing heavy."""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass, field
from typing import Any

from .wire import Kind, pack

# The original documents the same limit: longer messages are cut.
MAX_MESSAGE_CHARACTERS = 4000


@dataclass(frozen=True)
class RankLink:
    """A rank's place in its job and the line on which it reports.

    Attributes:
        rank: Number of this process, 0 to size - 1.
        size: Number of processes in the job.
        local_rank: Number of this process among those on the same host.
        local_size: Number of processes on this host.
        attempt: 0 for the first start of the job, 1 after its first restart, ...
        name: The job's name.
        job_key: Secret that only this job's processes hold; signs what one rank sends to another to be unpickled.
    """

    rank: int
    size: int
    local_rank: int = 0
    local_size: int = 1
    attempt: int = 0
    name: str = ""
    job_key: bytes = field(default=b"", repr=False)
    _socket: socket.socket | None = field(default=None, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def send(self, kind: Kind, body: bytes | dict[str, Any] = b"") -> None:
        """Sends one frame to the supervisor; without one (a process that nobody launched) does nothing."""
        if self._socket is None:
            return
        frame = pack(kind, body)
        with self._lock:
            try:
                self._socket.sendall(frame)
            except OSError:
                # The supervisor is gone and the keeper is about to end this process.
                return

    @property
    def launched(self) -> bool:
        """Tells whether a lakelens launcher started this process."""
        return self._socket is not None


_current = RankLink(rank=0, size=1)


def current() -> RankLink:
    """Gives this process's place; outside a launched rank a world of one."""
    return _current


def attach(link: RankLink) -> None:
    """Makes `link` the one of this process."""
    global _current
    _current = link


def log_to_driver(message: str) -> None:
    """Prints a message on the driver, whatever `driver_log_verbosity` says; outside a job, here.

    Args:
        message: Text; more than 4,000 characters are cut.
    """
    text = str(message)[:MAX_MESSAGE_CHARACTERS]
    link = current()
    if link.launched:
        link.send(Kind.MESSAGE, text.encode("utf-8", "replace"))
    else:
        import sys

        sys.stdout.write(text + "\n")
        sys.stdout.flush()
