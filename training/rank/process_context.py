"""A launched process' place in its job, and its line to the supervisor. Imports nothing heavy."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

from .driver_line import DriverLine
from .frames import Kind

# Databricks' HorovodRunner has the same limit: longer messages are cut.
MAX_MESSAGE_CHARACTERS = 4000


@dataclass(frozen=True)
class RankLink:
    """A rank's place in its job and the line on which it reports."""

    rank: int  # Number of this process, 0 to size - 1
    size: int  # Number of processes in the job
    local_rank: int = 0  # Number of this process among those on the same host
    local_size: int = 1  # Number of processes on this host
    attempt: int = 0  # 0 for the first start of the job, 1 after its first restart,
    name: str = ""  # The job's name
    # Secret of this job's processes; signs objects that one rank sends to another for unpickling
    job_key: bytes = field(default=b"", repr=False)
    # The line; None in a process without a launcher
    line: DriverLine | None = field(default=None, repr=False, compare=False)

    def send(self, kind: Kind, body: bytes | dict[str, Any] = b"") -> None:
        """Sends one frame to the supervisor; without one (no launcher) does nothing."""
        if self.line is not None:
            self.line.send(kind, body)

    @property
    def launched(self) -> bool:
        """Returns whether a lakelens launcher started this process."""
        return self.line is not None


_current = RankLink(rank=0, size=1)


def current() -> RankLink:
    """Gives this process's place; outside a launched rank that of a single process."""
    return _current


def attach(link: RankLink) -> None:
    """Makes `link` the link of this process."""
    global _current
    _current = link


def ask(body: dict[str, Any]) -> dict[str, Any]:
    """Asks the driver, from any thread, and waits for its answer: empty if it has no handler, or outside a job.

    While the driver computes the answer, no rank counts as stalled.
    """
    line = current().line
    return {} if line is None else line.ask(body)


def report(body: dict[str, Any]) -> None:
    """Sends the driver a question without waiting for an answer, from any thread; outside a job does nothing."""
    line = current().line
    if line is not None:
        line.report(body)


def told() -> dict[str, Any]:
    """Returns the driver's messages to this start of the job, the latest value of each key, without waiting."""
    line = current().line
    return {} if line is None else line.told()


def log_to_driver(message: str) -> None:
    """Prints a message on the driver, with any `driver_log_verbosity`; outside a job, in this process.

    A message of a rank that other ranks wait for counts as progress: their `stall_timeout_s` starts again.
    """
    text = str(message)[:MAX_MESSAGE_CHARACTERS]
    link = current()
    if link.launched:
        link.send(Kind.MESSAGE, text.encode("utf-8", "replace"))
    else:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
