"""Starts ranks as the tasks of one Spark barrier stage: the driver's side."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ....errors import LaunchError, RankFailedError
from ....spark.jvm import is_verbose
from ....spark.port import application_of, master_of, setting_of, without_logs
from ....spark.workers import reason_of
from ...rank.frames import Frame, Kind
from ..processes.failure_verdict import Failure
from ..processes.rank_process import append, temporary_file
from ..processes.return_value import read_value
from ..supervisor import Supervisor
from .barrier_stage import BarrierStage, StageEnd
from .channel_ranks import STAGE_END_S, ChannelRanks
from .executor_checks import explained, listening_address
from .preflight import check_cluster
from .slots import reserve, slots_now

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ACCOUNTS_S = 2.0
# Longest time in which a task tries to send a piece of rank 0's value.
_QUIET_S = 30.0


@contextlib.contextmanager
def start_on_cluster(
    supervisor: Supervisor, spark: SparkSession, *, slots_wait_s: float, driver_port: int = 0
) -> Iterator[StageRanks]:
    """Starts the ranks of a job as one barrier stage; leaving the context ends them."""
    job, notice = supervisor.job, supervisor.listener.on_notice
    check_cluster(spark, job, slots_wait_s, notice)
    with (
        reserve(application_of(spark), job.name, job.size, lambda: slots_now(spark), slots_wait_s, notice),
        contextlib.ExitStack() as stack,
    ):
        yield StageRanks(supervisor, spark, slots_wait_s, driver_port, stack)


class StageRanks(ChannelRanks):
    """Ranks as the tasks of one barrier stage."""

    def __init__(
        self,
        supervisor: Supervisor,
        spark: SparkSession,
        slots_wait_s: float,
        driver_port: int,
        stack: contextlib.ExitStack,
    ) -> None:
        self._spark, self._slots_wait_s = spark, slots_wait_s
        self._done: StageEnd | None = None
        self._done_at = 0.0
        self._unwritten: OSError | None = None
        self._stage = BarrierStage(spark, supervisor.job, slots_wait_s, lambda end: self._inbox.put(end))
        stack.callback(self._stage.join, STAGE_END_S)
        stack.callback(self._stage.release)
        self._large = stack.enter_context(temporary_file())
        addresses = ("spark.driver.host", "spark.driver.bindAddress")
        bind, advertised = listening_address(master_of(spark), {key: setting_of(spark, key) for key in addresses})
        super().__init__(supervisor, bind, driver_port, stack)
        stack.callback(self._leave_stage)
        want_lines = supervisor.listener.on_line is not None
        self._stage.start(advertised, self._channel.port, want_lines=want_lines)

    def _receive(self, rank: int, frame: Frame) -> None:
        """Handles a frame, in the channel's thread; see `ChannelRanks`."""
        if frame.kind == Kind.VALUE and rank == 0:
            try:
                if self._unwritten is None:
                    append(self._large, frame.body)
            except OSError as error:
                self._unwritten = error
            self._heard_at[rank] = time.monotonic()
        else:
            super()._receive(rank, frame)

    # --- what the supervisor does ---------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether Spark's job is done and the ranks' reports are in: its result uses another channel, may be first."""
        if self._done is None:
            return False
        now = time.monotonic()
        if self._done.error is not None:
            return not self._record.has_evidence and now - self._done_at >= _ACCOUNTS_S
        if len(self._hung_up) == self._job.size:
            return True
        complete = self._record.all_returned and 0 in self._hung_up
        arrived_at = max(self._done_at, *(heard_at or 0.0 for heard_at in self._heard_at))
        return now - arrived_at >= (_ACCOUNTS_S if complete else _QUIET_S)

    def step(self, timeout_s: float) -> None:
        """Takes all deciding events, waits if there are none, and looks for tasks that are missing or silent."""
        super().step(timeout_s)
        if not self.reachable and self._done is None:
            missing, name = self._job.size - len(self._hellos), self._job.name
            waited = self._stage.wait_for_tasks(
                missing, self._supervisor.listener.on_notice, have_reported=bool(self._hellos)
            )
            if waited > self._slots_wait_s + self._job.stall_timeout_s:
                raise LaunchError(f"{name}: {missing} of {self._job.size} tasks never reported to the driver")

    def explain(self, failure: Failure) -> Failure | LaunchError:
        """Adds what Spark knows about a lost task: that its job was cancelled, or its executor lost."""
        if failure.reason != "lost":
            return failure
        self._wait_for(lambda: self._done is not None, _ACCOUNTS_S)
        if self._done is None or self._done.error is None:
            return failure
        known = explained(self._done.error, self._job.name)
        if not isinstance(known, RankFailedError) or known.reason == "cancelled":
            return known
        return replace(failure, sentence=f"{failure.sentence} (Spark says: {reason_of(self._done.error)})")

    def end(self, stacks_of: Sequence[int] = ()) -> None:
        """Ends all ranks and the Spark job, and waits for both; Spark does not log that its tasks fail by that."""
        with contextlib.ExitStack() as stack:
            if not is_verbose():
                with contextlib.suppress(Exception):  # a JVM that has ended logs nothing
                    stack.enter_context(without_logs(self._spark))
            super().end(stacks_of)
            if self._done is None:
                self._stage.cancel()
                self._wait_for(self._all_ended, STAGE_END_S)

    def value(self) -> Any:
        """Returns rank 0's value; see `Ranks.value`."""
        name, done = self._job.name, self._done
        if done is not None and done.error is not None:
            raise explained(done.error, name) from done.error
        if done is None or not self._record.all_returned:
            raise LaunchError(f"{name}: Spark says that the job is done, but not every rank has returned")
        if self._unwritten is not None:
            raise LaunchError(
                f"{name}: the folder for temporary files, {tempfile.gettempdir()}, has no space for rank 0's "
                f"value ({self._unwritten}); free space there, set TMPDIR to another folder, or save the object and "
                f"return its path"
            )
        skeleton, large = b"".join(done.chunks or []), self._record.value["large"]
        received = self._large.seek(0, 2)
        if received != sum(size for _, size in large):
            raise LaunchError(f"{name}: rank 0's value arrived in part only ({received} bytes); run it again")
        self._large.seek(0)
        return read_value(skeleton, large, self._large)

    # --- the parts ------------------------------------------------------------------------------------------------

    def _take(self, item: Any) -> None:
        if isinstance(item, StageEnd):
            self._done, self._done_at = item, time.monotonic()
        else:
            super()._take(item)

    def _all_ended(self) -> bool:
        return self._done is not None and super()._all_ended()

    def _leave_stage(self) -> None:
        """Ends what still runs, even after an interruption."""
        if self._done is None and self._stage.is_started:
            self.end()
