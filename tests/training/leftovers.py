"""What a job may leave behind: nothing. Processes, ports, descriptors, threads, files with a name, shared memory."""

from __future__ import annotations

import collections
import contextlib
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

TOKEN = "LAKELENS_TEST_TOKEN"
# Long enough for a loaded machine: what is left after it would stay for ever.
PATIENCE_S = 60.0


def wait_until(condition: Callable[[], object], patience_s: float = 120.0) -> None:
    """Waits for what must come; what has not come in time would never come."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def listening() -> set[tuple[str, int]]:
    """Where this process and all below it listen."""
    found = set()
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            for connection in process.net_connections(kind="inet"):
                if connection.status == psutil.CONN_LISTEN:
                    found.add((connection.laddr.ip, connection.laddr.port))
    return found


def files_in(folder: str) -> list[str]:
    """Files with a name in the ranks' folder for temporary files, but for those of a killed TensorFlow."""
    return [path.name for path in Path(folder).iterdir() if not path.name.startswith("__autograph_generated_file")]


def shared_memory() -> set[str]:
    """Names of pieces of shared memory; MLflow's servers keep folders there."""
    folder = Path("/dev/shm")
    return {path.name for path in folder.iterdir() if not path.is_dir()} if folder.is_dir() else set()


def held_by_somebody(name: str) -> bool:
    """Tells whether a living process has a piece of shared memory mapped: then it belongs to that one."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"/dev/shm/{name}" in (entry / "maps").read_text():
                return True
    return False


def lakelens_threads() -> set[threading.Thread]:
    """Our threads in this process."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("lakelens-")}


def feed_threads() -> list[str]:
    """Names of the threads that read, decode and transform for feeds."""
    begin = ("lakelens-read", "lakelens-decode", "lakelens-transform")
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(begin)]


@dataclass
class Watch:
    """A job's environment, by which its processes are found, and what is left of it."""

    token: str = field(default_factory=lambda: secrets.token_hex(8))
    temporary: str | None = None

    @property
    def env(self) -> dict[str, str]:
        return {TOKEN: self.token, **({"TMPDIR": self.temporary} if self.temporary else {})}

    def processes(self) -> list[str]:
        """The living processes that were started with the token in their environment."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"{TOKEN}={self.token}".encode() in (entry / "environ").read_bytes():
                    command = (entry / "cmdline").read_bytes().replace(bytes(1), b" ")[-120:].decode()
                    found.append(f"{entry.name}: {command}")
        return found

    def wait_until_gone(self) -> None:
        """Waits until no process of the job is left."""
        wait_until(lambda: not self.processes())


def open_descriptors() -> list[str]:
    """What each open descriptor of this process leads to; sockets and pipes without their numbers.

    Without JARs: PySpark adds these to `sys.path`, and importlib.metadata keeps them open once it has looked there.
    """
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found.append(str(link.readlink()).partition(":[")[0])
    return [target for target in found if not target.endswith(".jar")]


@contextlib.contextmanager
def leaves_nothing(same_process_tree: bool = True) -> Iterator[Watch]:
    """Checks at the end that nothing of a job is left; pass `watch.env` to the runner.

    Ports and descriptors are checked too, but for where the test itself ends an executor (`same_process_tree`).
    """
    watch = Watch(temporary=tempfile.mkdtemp())
    ports, descriptors, shared = listening(), open_descriptors(), shared_memory()
    threads = lakelens_threads()
    yield watch
    deadline = time.monotonic() + PATIENCE_S
    while True:
        now = open_descriptors()
        more = list((collections.Counter(now) - collections.Counter(descriptors)).elements())
        left = {
            "processes": watch.processes(),
            "ports": sorted(listening() - ports) if same_process_tree else [],
            "files": files_in(watch.temporary),
            "shared memory": [name for name in shared_memory() - shared if not held_by_somebody(name)],
            "threads": sorted(thread.name for thread in lakelens_threads() - threads),
            # The JVM gateway may open a connection or two for itself; a leak of the launcher would be six a rank.
            "descriptors": more if same_process_tree and len(now) > len(descriptors) + 4 else [],
        }
        if not any(left.values()) or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    assert not any(left.values()), left
    shutil.rmtree(watch.temporary)
