"""A standalone Spark cluster in processes of its own: a master and workers of one core."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from child_processes import ending_with_this_process


@dataclass
class StandaloneCluster:
    """A master and its workers, whose logs lie in a folder."""

    folder: Path
    environment: dict[str, str]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    url: str = ""  # the master's, once it has started

    def start_all(self, host: str, workers: Mapping[str, Sequence[str]]) -> None:
        """Starts the master at an address, and a worker at each address, within the command that is given for it."""
        self._start("master.Master", "--host", host, "--port", "0", "--webui-port", "0")
        self.url = self._wait_for(r"Starting Spark master at (spark://\S+)")
        for address, inside in workers.items():
            options = ("--host", address, "--webui-port", "0", "--cores", "1", "--memory", "1g")
            self._start("worker.Worker", *options, self.url, inside=inside)
        self._wait_for("Successfully registered with master", len(workers))

    def _start(self, kind: str, *arguments: str, inside: Sequence[str] = ()) -> None:
        import pyspark

        started = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
        command = ending_with_this_process([*inside, started, f"org.apache.spark.deploy.{kind}", *arguments])
        with (self.folder / f"{kind}-{len(self.processes)}.log").open("w") as output:
            process = subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdout=output, stderr=output, start_new_session=True
            )
        self.processes.append(process)

    def _wait_for(self, pattern: str, count: int = 1) -> str:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            text = "".join(path.read_text() for path in self.folder.glob("*.log"))
            found = re.findall(pattern, text)
            if len(found) >= count:
                return str(found[0])
            time.sleep(0.1)
        raise AssertionError(f"{pattern} is not in the logs:\n{text[-3000:]}")

    def stop(self) -> None:
        """Kills the master, the workers and what they have started."""
        for process in self.processes:
            with contextlib.suppress(psutil.Error, OSError):
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
