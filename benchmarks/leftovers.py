"""What a launcher leaves behind: processes, listening ports and temporary files of one driver and all it started."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import psutil

# Every process that a driver starts inherits this variable, also those that have been given another parent.
TAG = "LAKELENS_BENCHMARK_TAG"
_DAEMON = "pyspark.daemon"


@dataclass(frozen=True)
class Seen:
    """What there is at one moment."""

    processes: dict[int, str]  # Process ids and command lines of tagged processes, without the driver and Spark's own
    ports: frozenset[tuple[str, int]]  # (command, port) of every tagged process that listens, without Spark's own
    files: frozenset[str]  # Paths in the temporary folder, and in shared memory those that are not somebody else's

    def beyond(self, before: Seen) -> dict[str, list[str]]:
        """What is here and was not there before."""
        ports = {port for _, port in before.ports}
        return {
            "processes": [f"{pid} {text}" for pid, text in self.processes.items() if pid not in before.processes],
            "ports": [f"{text} :{port}" for text, port in sorted(self.ports) if port not in ports],
            "files": sorted(self.files - before.files),
        }


def tagged(tag: str) -> list[psutil.Process]:
    """All processes that carry the tag in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(TAG) == tag and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def look(tag: str, driver: int, temporary: Path) -> Seen:
    """Looks once."""
    processes: dict[int, str] = {}
    ports: set[tuple[str, int]] = set()
    for process in tagged(tag):
        try:
            words = process.cmdline()
            command = " ".join(words)
            if _DAEMON in words or Path(words[0] if words else "").name == "java":
                continue
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    ports.add((_short(command), connection.laddr.port))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if process.pid != driver:
            processes[process.pid] = _short(command)
    files = {str(path) for path in temporary.rglob("*")}
    return Seen(processes, frozenset(ports), frozenset(files | _shared_memory(tag)))


def _shared_memory(tag: str) -> set[str]:
    """Paths in shared memory, but for those that a living process of somebody else's has mapped."""
    folder = Path("/dev/shm")  # noqa: S108 - looked at, not written
    files = {str(path) for path in folder.iterdir()} if folder.is_dir() else set()
    ours = {process.pid for process in tagged(tag)}
    for process in Path("/proc").glob("[0-9]*") if files else ():
        if int(process.name) not in ours:
            try:
                maps = (process / "maps").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            files -= {line.split(maxsplit=5)[5] for line in maps.splitlines() if str(folder) in line}
    return files


def end_tagged(tag: str) -> None:
    """Kills every tagged process."""
    for process in tagged(tag):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _short(command: str) -> str:
    words = [Path(word).name if word.startswith("/") else word for word in command.split()]
    return " ".join(words)[:100]
