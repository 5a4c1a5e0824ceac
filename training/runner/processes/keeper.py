"""The keeper of one rank: starts it, watches it, and ends all its processes.

It is a separate program (standard library only, run from its source text, so that it also works from a zip file)
between the supervisor and the rank. If the supervisor ends in any way, the keeper sees its standard input close and
ends the rank with all its child processes; if the keeper itself is killed, the kernel kills the rank. As a child
subreaper it inherits even processes that left the rank's session, so none escapes.

Standard input carries commands: `T` ends the rank softly, then hard; `K` at once; end of file is like `T`.
Standard output carries one JSON object a line: {"pid"}, {"stopped"}, {"continued"}, {"ended"}; it closes when no
process remains.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# Also check the parent's process id, in case a fork of the parent keeps the standard input open.
PARENT_CHECK_S = 1.0
HARD_END_S = 5.0

_libc = ctypes.CDLL(None, use_errno=True)


def oom_kills() -> int:
    """Counts the processes that the kernel has killed for memory in this control group; 0 if unknown."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return 0
    counts = []
    for line in lines:
        _, controllers, folder = line.split(":", 2)
        if not controllers:
            places = ["/sys/fs/cgroup", "/sys/fs/cgroup" + folder]
            counts += [_counter(f"{place}/memory.events") for place in dict.fromkeys(places)]
        elif "memory" in controllers.split(","):
            # In a container this group may be the mounted root.
            places = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory" + folder]
            counts += [_counter(f"{place}/memory.oom_control") for place in dict.fromkeys(places)]
    known = [count for count in counts if count is not None]
    # The whole machine's counter, for machines without control groups.
    return sum(known) if known else _counter("/proc/vmstat") or 0


def _counter(path: str) -> int | None:
    """Reads `oom_kill` from a file of names and values; None if the file lacks it."""
    try:
        for line in Path(path).read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except (OSError, ValueError):
        return None
    return None


def descendants(root: int) -> list[int]:
    """Lists every living process below `root`, nearest first."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        entry = folder.name
        if not entry.isdigit():
            continue
        try:
            # Bytes: a process name need not be valid text.
            after_name = Path("/proc", entry, "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        if after_name[0] != b"Z":
            children.setdefault(int(after_name[1]), []).append(int(entry))
    found: list[int] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def send_signal(pid: int, number: int) -> None:
    """Sends a signal to a process that may have ended already."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


class Keeper:
    """One rank and all its child processes."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.rank_pid = 0
        self.rank_ended = False
        self.ending = False
        self.hard_at = float("inf")
        self.oom_before = oom_kills()

    def start(self) -> None:
        """Starts the rank in its own session."""
        self.rank_pid = os.fork()
        if self.rank_pid == 0:
            try:
                self._become_rank()
            finally:
                os._exit(127)
        for descriptor in {self.spec["stdout"], self.spec["stderr"], *self.spec["keep"]}:
            os.close(descriptor)
        self.report({"pid": self.rank_pid})

    def _become_rank(self) -> None:
        keeper = os.getppid()
        os.setsid()
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != keeper:
            os._exit(0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(self.spec["stdout"], 1)
        os.dup2(self.spec["stderr"], 2)
        for descriptor in self.spec["keep"]:
            os.set_inheritable(descriptor, True)
        os.execvp(self.spec["argv"][0], self.spec["argv"])  # noqa: S606 - an argument list of our own

    def report(self, status: dict[str, Any]) -> None:
        """Writes one line to the supervisor; continues cleaning up if the supervisor has ended."""
        try:
            os.write(1, json.dumps(status).encode() + b"\n")
        except OSError:
            return

    def reap(self) -> None:
        """Collects every child whose state changed, and reports those of the rank."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid != self.rank_pid:
                continue
            if os.WIFSTOPPED(status):
                self.report({"stopped": os.WSTOPSIG(status)})
            elif os.WIFCONTINUED(status):
                self.report({"continued": True})
            else:
                self.rank_ended = True
                signalled = os.WIFSIGNALED(status)
                self.report(
                    {
                        "ended": True,
                        "exit_code": None if signalled else os.WEXITSTATUS(status),
                        "signal": os.WTERMSIG(status) if signalled else None,
                        "peak_bytes": usage.ru_maxrss * 1024,
                        "out_of_memory": signalled and oom_kills() > self.oom_before,
                    }
                )

    def end(self, grace_s: float) -> None:
        """Sends SIGTERM to the rank and its children; `sweep` sends SIGKILL after `grace_s`."""
        self.ending = True
        self.hard_at = min(self.hard_at, time.monotonic() + grace_s)
        for pid in descendants(os.getpid()):
            send_signal(pid, signal.SIGTERM if grace_s > 0 else signal.SIGKILL)
            send_signal(pid, signal.SIGCONT)

    def run(self) -> None:
        """Watches until no process of the rank remains."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        os.set_blocking(reading, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        wanted: list[int] = []
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, _frame: wanted.append(number))
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self.start()
        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.register(reading, select.POLLIN)
        while True:
            wait_s = 0.05 if self.ending or self.rank_ended else PARENT_CHECK_S
            for descriptor, _ in poll.poll(wait_s * 1000):
                if descriptor == reading:
                    os.read(reading, 4096)
                else:
                    command = os.read(0, 16)
                    if not command:
                        poll.unregister(0)
                    self.end(0.0 if b"K" in command else self.spec["grace_s"])
            if not self.ending and (wanted or os.getppid() != self.spec["parent"]):
                self.end(self.spec["grace_s"])
            self.reap()
            if self.swept():
                return

    def swept(self) -> bool:
        """Ends the rank's remaining children; returns whether none remains."""
        if not self.rank_ended:
            if self.ending and time.monotonic() > self.hard_at:
                self.end(0.0)
            return False
        left = descendants(os.getpid())
        if not left:
            return True
        if not self.ending:
            self.end(min(1.0, self.spec["grace_s"]))
        elif time.monotonic() > self.hard_at:
            self.end(0.0)
        # A process in an uninterruptible wait on a dead disk cannot be ended.
        return time.monotonic() > self.hard_at + HARD_END_S


def main() -> None:
    """Runs the keeper on the specification in the first argument."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    Keeper(json.loads(sys.argv[1])).run()


if __name__ == "__main__":
    main()
