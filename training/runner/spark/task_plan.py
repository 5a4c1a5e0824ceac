"""What every task of a barrier stage gets through Spark."""

from __future__ import annotations

from dataclasses import dataclass

from ..placement.job import Job

# Of a value that is larger.
PIECE_BYTES = 8 << 20


@dataclass(frozen=True)
class TaskPlan:
    """What every task of a job gets through Spark."""

    job: Job  # The job; its payload is empty if it is a broadcast variable
    address: str  # Where the driver listens; empty if rank 0's task leads the job (`leader`)
    port: int  # Its port there, or that of rank 0's task
    want_lines: bool  # Whether the driver wants every line as it is written
    version: str  # lakelens' version on the driver
    reports_within_s: float  # How long rank 0's task, if it leads, waits for the others
    listener: str = "the driver"  # What listens at the address, as errors name it
