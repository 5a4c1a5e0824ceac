"""A control group with a memory limit: the kernel kills the process that exceeds it."""

from __future__ import annotations

import contextlib
import secrets
import time
from pathlib import Path

# Its last process may not have been buried yet.
_REMOVE_S = 30.0


class MemoryGroupError(Exception):
    """Raised when no memory control group can be made here; lists what was tried."""


class MemoryGroup:
    """A memory control group, of version 2, else of version 1.

    Attributes:
        processes: The file that takes the ids of processes which join, with all that they start from then on.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        name = f"lakelens-{secrets.token_hex(4)}"
        tries = [
            (Path("/sys/fs/cgroup") / name, "memory.max", "memory.events"),
            (Path("/sys/fs/cgroup/memory") / name, "memory.limit_in_bytes", "memory.oom_control"),
        ]
        reasons = []
        for folder, limit, events in tries:
            try:
                folder.mkdir()
            except OSError as error:
                reasons.append(str(error))
                continue
            self._folder, self._events = folder, folder / events
            if (folder / limit).exists():
                (folder / limit).write_text(str(limit_bytes), encoding="ascii")
                with contextlib.suppress(OSError):
                    (folder / "memory.swap.max").write_text("0", encoding="ascii")
                self.processes = folder / "cgroup.procs"
                return
            reasons.append(f"{folder} has no {limit}")
            self.remove()
        raise MemoryGroupError(f"no memory control group can be made here: {'; '.join(reasons)}")

    def kills(self) -> int:
        """Counts the processes that the kernel has killed for memory in the group."""
        for line in self._events.read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
        return 0

    def remove(self) -> None:
        """Removes the group, once its last process has gone."""
        deadline = time.monotonic() + _REMOVE_S
        while True:
            try:
                self._folder.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return

    def __enter__(self) -> MemoryGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()
