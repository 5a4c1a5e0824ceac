"""Whether a process that left a mark is still running."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil

# The start of a process is computed from the time since boot and the clock, which may have been set meanwhile.
_SAME_START_S = 5.0


@dataclass(frozen=True)
class Process:
    """Names a process for other processes, also of other machines."""

    host: str  # Name of its host, for messages
    machine: str  # What gives process ids: equal for two processes that see each other under the same id
    pid: int  # Its id
    started: float  # When it started, in seconds since 1970

    @classmethod
    def this(cls) -> Process:
        """Returns this process."""
        return cls(socket.gethostname(), _machine(), os.getpid(), psutil.Process().create_time())

    def is_running(self) -> bool | None:
        """Returns whether it is still there; None if this process cannot see it, as on another machine."""
        if self.machine != _machine():
            return None
        try:
            found = psutil.Process(self.pid)
            is_same = abs(found.create_time() - self.started) < _SAME_START_S
            return is_same and found.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False
        except psutil.Error:
            return None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def _machine() -> str:
    # Host names do not suffice: containers may share a host's.
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}:{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()
