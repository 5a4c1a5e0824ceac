"""Starts ranks from a Spark Connect session: the client's side.

Executors may not reach the client, so rank 0's task decides about the job (`leader`), and its rows bring how it has
ended. Until then the client only waits, and cancels the job if it is interrupted.
"""

from __future__ import annotations

import contextlib
import pickle
import queue
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ....errors import LaunchError, RankFailedError, UnpicklableFunctionError
from ....spark.port import application_of, option_of, reports_progress
from ...rank.frames import Kind
from ..processes.rank_process import append, temporary_file
from ..processes.return_value import read_value
from ..supervisor import Ranks, Supervisor
from .barrier_stage import BarrierStage, StageEnd
from .channel_ranks import STAGE_END_S
from .executor_checks import explained
from .leader import Outcome
from .preflight import check_cluster
from .slots import reserve, slots_now

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The setting of a server's largest message, its default, and the bytes reserved for the rest of the plan.
_LIMIT, _DEFAULT_LIMIT = "spark.connect.grpc.maxInboundMessageSize", "128m"
_REST_BYTES = 1 << 20
_SIZE = re.compile(r"(?P<number>\d+)\s*(?P<unit>[kmg]?)b?", re.IGNORECASE)


@contextlib.contextmanager
def start_on_connect(
    supervisor: Supervisor, spark: SparkSession, *, slots_wait_s: float, driver_port: int = 0
) -> Iterator[ConnectRanks]:
    """Starts the ranks of a job as one barrier stage of a Connect server; leaving the context ends them."""
    job, notice = supervisor.job, supervisor.listener.on_notice
    check_sent_bytes(job.name, len(job.payload), option_of(spark, _LIMIT, _DEFAULT_LIMIT))
    check_cluster(spark, job, slots_wait_s, notice)
    with (
        reserve(application_of(spark), job.name, job.size, lambda: slots_now(spark), slots_wait_s, notice),
        contextlib.ExitStack() as stack,
    ):
        notice(f"{job.name}: lines and messages of ranks on a Spark Connect session are shown when they have ended")
        yield ConnectRanks(supervisor, spark, slots_wait_s, driver_port, stack)


def check_sent_bytes(name: str, size: int, limit: str) -> None:
    """Checks that a function and its arguments fit into a message of a server with a limit, as Spark writes it."""
    found = _SIZE.fullmatch(limit.strip())
    most = int(found["number"]) << 10 * " kmg".index(found["unit"].lower() or " ") if found else 128 << 20
    if size + _REST_BYTES > most:
        raise UnpicklableFunctionError(
            f"{name}: the function and its arguments are {size / (1 << 20):.1f} MiB, and this Spark Connect server "
            f"takes messages of {most / (1 << 20):.1f} MiB ({_LIMIT}); save large objects and pass their paths"
        )


class ConnectRanks(Ranks):
    """Ranks as the tasks of one barrier stage of a Connect server."""

    # Nothing can be sent to a rank.
    reachable = False

    def __init__(
        self, supervisor: Supervisor, spark: SparkSession, slots_wait_s: float, port: int, stack: contextlib.ExitStack
    ) -> None:
        self._supervisor, self._job = supervisor, supervisor.job
        self._is_told_of_tasks = reports_progress(spark)
        if not self._is_told_of_tasks:
            supervisor.listener.on_notice(
                f"{self._job.name}: this server reports no progress of queries, so slots that other jobs hold are "
                "waited for without a bound; Spark 4.0 reports it, unless spark.connect.progress.reportInterval is "
                "negative"
            )
        self._ends: queue.SimpleQueue[StageEnd] = queue.SimpleQueue()
        self._outcome: Outcome | None = None
        self._value = stack.enter_context(temporary_file())
        self._stage = BarrierStage(spark, self._job, slots_wait_s, self._ends.put)
        stack.callback(self.end)
        self._stage.start("", port, want_lines=False)

    @property
    def ended(self) -> bool:
        """Whether the job has ended."""
        return self._outcome is not None

    def step(self, timeout_s: float) -> None:
        """Waits for the end of the job."""
        listener = self._supervisor.listener
        with contextlib.suppress(queue.Empty):
            self._take(self._ends.get(timeout=timeout_s))
            return
        if listener.controls.since(0):
            raise RankFailedError(
                f"{self._job.name} was interrupted, and its ranks have been ended: ranks on a Spark Connect session "
                "cannot pause. A training that is resumed continues from its last checkpoint",
                reason="cancelled",
            )
        if self._is_told_of_tasks and not self._stage.has_slots():
            self._stage.wait_for_tasks(self._job.size, listener.on_notice)

    def send(self, rank: int, kind: Kind, body: bytes) -> None:
        """Does nothing."""

    def close_stores(self) -> None:
        """Does nothing: rank 0's task closes them."""

    def end(self, stacks_of: Sequence[int] = ()) -> None:
        """Cancels the job, unless it has ended, and waits for its end."""
        if self._outcome is None and self._stage.is_started:
            self._stage.cancel()
        self._stage.join(STAGE_END_S)

    def value(self) -> Any:
        """Returns rank 0's value; see `Ranks.value`."""
        outcome = self._outcome
        if outcome is None:
            raise LaunchError(f"{self._job.name} has not ended")
        if outcome.error is not None:
            raise outcome.error
        self._value.seek(0)
        return read_value(self._value.read(outcome.value["pickle"]), outcome.value["large"], self._value)

    def _take(self, end: StageEnd) -> None:
        if end.error is not None:
            self._outcome = Outcome(error=explained(end.error, self._job.name))
            return
        chunks = end.chunks or []
        if b"" not in chunks:
            self._outcome = Outcome(error=LaunchError(f"{self._job.name} gave no rows"))
            return
        told = chunks.index(b"")
        outcome: Outcome = pickle.loads(b"".join(chunks[:told]))  # noqa: S301 - of a task of this job, as the value
        for piece in chunks[told + 1 :]:
            append(self._value, piece)
        for notice in outcome.notices:
            self._supervisor.listener.on_notice(notice)
        for event in outcome.events:
            self._supervisor.hear(event)
        self._outcome = outcome
