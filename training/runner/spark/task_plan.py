"""What every task of a barrier stage gets through Spark."""

from __future__ import annotations

from dataclasses import dataclass

from ..placement.job import Job

# Of a value that is larger.
PIECE_BYTES = 8 << 20


@dataclass(frozen=True)
class TaskPlan:
    """What every task of a job gets through Spark.

    Attributes:
        job: The job; its payload is empty if it is a broadcast variable.
        address: Where the driver listens; empty if rank 0's task leads the job (`leader`).
        port: Its port there, or that of rank 0's task.
        want_lines: Whether the driver wants every line as it is written.
        version: lakelens' version on the driver.
        reports_within_s: How long rank 0's task, if it leads, waits for the others.
        listener: What listens at the address, as errors name it.
    """

    job: Job
    address: str
    port: int
    want_lines: bool
    version: str
    reports_within_s: float
    listener: str = "the driver"
