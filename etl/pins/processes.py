"""Which process has left a note, and whether it is still running."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

# A process's start is computed from the time since boot and the clock, which may have been set meanwhile.
_SAME_START_S = 5.0


def this_process() -> dict[str, Any]:
    """Describes this process in JSON values, for `is_running` in another one."""
    return {"machine": _machine(), "pid": os.getpid(), "started": psutil.Process().create_time()}


def is_running(process: Mapping[str, Any]) -> bool | None:
    """Returns whether a process is still there; None if this process cannot see it, as on another machine.

    Args:
        process: What `this_process` gave it.
    """
    try:
        pid, started = int(process["pid"]), float(process["started"])
        if process["machine"] != _machine():
            return None
        found = psutil.Process(pid)
        return found.status() != psutil.STATUS_ZOMBIE and abs(found.create_time() - started) < _SAME_START_S
    except psutil.NoSuchProcess:
        return False
    except (psutil.Error, KeyError, TypeError, ValueError):
        return None


def _machine() -> str:
    """Names what gives process ids: equal for two processes that would see each other under the same id.

    Host names do not tell: containers may share a host's.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}:{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()
