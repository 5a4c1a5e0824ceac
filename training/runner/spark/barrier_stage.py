"""The Spark job of one barrier stage, run by a thread of the driver."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ....errors import LaunchError, NotEnoughSlotsError
from ....spark.port import broadcast, cancel_jobs, has_running_tasks, other_jobs, run_barrier, session_thread
from ..placement.job import Job
from .barrier_task import task_function
from .slots import shortage
from .task_channel import TaskPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_SAY_AFTER_S = 5.0
_CANCEL_AGAIN_S = 1.0


@dataclass(frozen=True)
class StageEnd:
    """The Spark job has ended."""

    chunks: list[bytes] | None  # The tasks' results; None if it failed
    error: Exception | None  # Why it failed


class BarrierStage:
    """One barrier stage of a job; starts nothing until `start`."""

    def __init__(self, spark: SparkSession, job: Job, slots_wait_s: float, on_end: Callable[[StageEnd], None]) -> None:
        self._spark, self._job, self._slots_wait_s, self._on_end = spark, job, slots_wait_s, on_end
        self._tag = f"lakelens-{secrets.token_hex(8)}"
        self._payload = broadcast(spark, job.payload)
        self._thread: threading.Thread | None = None
        self._cancelled, self._has_run = threading.Event(), threading.Event()

    @property
    def is_started(self) -> bool:
        """Whether `start` was called."""
        return self._thread is not None

    def start(self, address: str, port: int, *, want_lines: bool) -> None:
        """Starts the stage; see `TaskPlan` for the arguments."""
        import lakelens

        spark, job, tag = self._spark, self._job, self._tag
        plan = TaskPlan(
            job=replace(job, payload=b""),
            address=address,
            port=port,
            want_lines=want_lines,
            version=lakelens.__version__,
            reports_within_s=self._slots_wait_s + job.stall_timeout_s,
        )
        body = task_function(plan, self._payload)

        def run_stage() -> None:
            chunks, error = None, None
            try:
                if self._cancelled.is_set():
                    raise LaunchError(f"{job.name} was cancelled before Spark had it")
                said = f"lakelens: {job.name}, {job.size} ranks"
                chunks = run_barrier(spark, body, job.size, tag, said, self._has_run.set)
            except Exception as problem:  # noqa: BLE001 - told to the waiting thread, whatever it is
                error = problem
            self._on_end(StageEnd(chunks, error))

        # Cancelling the caller's job group, or interrupting its tag, cancels the job.
        self._thread = session_thread(spark, run_stage, f"lakelens-{job.name}")
        self._started_at = time.monotonic()
        self._notice_at = self._started_at + _SAY_AFTER_S
        self._thread.start()

    def has_slots(self) -> bool:
        """Returns whether the stage has its slots; a first task then still waits for its Python to start."""
        if not self._has_run.is_set() and has_running_tasks(self._spark, self._tag):
            self._has_run.set()
        return self._has_run.is_set()

    def wait_for_tasks(self, missing: int, notice: Callable[[str], None], *, have_reported: bool = False) -> float:
        """Reports what the stage waits for; returns the seconds since its start."""
        job, now = self._job, time.monotonic()
        waited = now - self._started_at
        if waited > max(self._slots_wait_s, _SAY_AFTER_S) and not have_reported and not self.has_slots():
            raise NotEnoughSlotsError(
                f"{job.name}: none of {job.size} tasks could start within {self._slots_wait_s:g} s; "
                f"a barrier stage needs all its slots free at once, {shortage(self._spark)}, and "
                f"{self._other_jobs()}; end other jobs, wait longer (slots_wait_s), or use fewer ranks"
            )
        if now >= self._notice_at:
            self._notice_at = now + 10 * _SAY_AFTER_S
            notice(f"{job.name} waits for {missing} of {job.size} tasks to start; {self._other_jobs()}")
        return waited

    def _other_jobs(self) -> str:
        """Describes how many other Spark jobs the session runs."""
        count = other_jobs(self._spark)
        if count is None:
            return "other Spark jobs of the server may hold them"
        return f"{count} other Spark jobs are running" if count else "no other Spark job of this session is running"

    def cancel(self) -> None:
        """Cancels the Spark job, again and again until it has ended: one that is still being sent has no tag yet."""
        self._cancelled.set()
        threading.Thread(target=self._cancel, name=f"lakelens-cancels-{self._job.name}", daemon=True).start()

    def _cancel(self) -> None:
        while self._thread is not None and self._thread.is_alive():
            with contextlib.suppress(Exception):
                cancel_jobs(self._spark, self._tag)
            self._thread.join(_CANCEL_AGAIN_S)

    def release(self) -> None:
        """Frees the broadcast function."""
        with contextlib.suppress(Exception):
            self._payload.destroy()

    def join(self, timeout_s: float) -> None:
        """Waits for the stage's thread."""
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join(timeout=timeout_s)
