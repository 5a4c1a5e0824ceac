"""Starts ranks as the tasks of one Spark barrier stage: the driver's side."""

from __future__ import annotations

import contextlib
import queue
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ....errors import LaunchError, NotEnoughSlotsError, RankFailedError
from ....spark.port import application_of, master_of, setting_of
from ....spark.workers import reason_of
from ...rank.frames import Frame, Kind
from ..output import SHOWN_KINDS
from ..placement.gpus import executor_gpus, group_by_machine, visible_to_rank
from ..placement.job import assignment, horovod_environment, place
from ..processes.events import check_hello, checked_event
from ..processes.failure_verdict import Failure
from ..processes.rank_process import append, temporary_file
from ..processes.rank_record import RankEvent
from ..processes.return_value import read_value
from ..supervisor import Supervisor
from .barrier_stage import BarrierStage, StageEnd
from .barrier_task import BEAT_S
from .driver_channel import DriverChannel
from .executor_checks import check_executors, explained, listening_address
from .preflight import check_cluster
from .slots import reserve, shortage, slots_now

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark needs this long to notice that a task has ended and to end the stage.
_STAGE_END_S = 15.0
# A busy machine delays a heartbeat; with a short stall timeout, too, only several missing ones count.
_SILENT_BEATS = 4
_SAY_AFTER_S = 5.0
_ACCOUNTS_S = 2.0
# Longest time in which a task tries to send a piece of rank 0's value.
_QUIET_S = 30.0
_LOST = "lost contact with the driver: its executor was lost, or its Python worker was ended"


@contextlib.contextmanager
def start_on_cluster(
    supervisor: Supervisor, spark: SparkSession, *, slots_wait_s: float, driver_port: int = 0
) -> Iterator[StageRanks]:
    """Starts the ranks of a job as one barrier stage; leaving the context ends them.

    Raises:
        NotEnoughSlotsError: If the cluster has fewer slots, or they do not come free within `slots_wait_s`.
        ClusterConfigurationError: If settings do not allow the job, or an executor's Python differs from the driver's.
    """
    job, notice = supervisor.job, supervisor.listener.on_notice
    check_cluster(spark, job, slots_wait_s, notice)
    with (
        reserve(application_of(spark), job.name, job.size, lambda: slots_now(spark), slots_wait_s, notice),
        contextlib.ExitStack() as stack,
    ):
        yield StageRanks(supervisor, spark, slots_wait_s, driver_port, stack)


class StageRanks:
    """Ranks as the tasks of one barrier stage.

    Args:
        supervisor: Hears their events.
        spark: The session.
        slots_wait_s: How long the tasks may take to start.
        driver_port: Where the driver listens; 0 for any port.
        stack: Collects the closing function of each resource at once, so that an interrupted start leaves nothing.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        spark: SparkSession,
        slots_wait_s: float,
        driver_port: int,
        stack: contextlib.ExitStack,
    ) -> None:
        self._supervisor, self._job, self._record = supervisor, supervisor.job, supervisor.record
        self._spark, self._slots_wait_s = spark, slots_wait_s
        self._inbox: queue.SimpleQueue[tuple[int, Frame | RankEvent | str | None] | StageEnd] = queue.SimpleQueue()
        self._hellos: dict[int, dict[str, Any]] = {}
        self._heard_at: list[float | None] = [None] * self._job.size
        self._hung_up: set[int] = set()
        self._done: StageEnd | None = None
        self._done_at = 0.0
        self._unwritten: OSError | None = None
        self._stage = BarrierStage(spark, self._job, self._inbox.put)
        stack.callback(self._stage.join, _STAGE_END_S)
        stack.callback(self._stage.release)
        self._large = stack.enter_context(temporary_file())
        addresses = ("spark.driver.host", "spark.driver.bindAddress")
        bind, advertised = listening_address(master_of(spark), {key: setting_of(spark, key) for key in addresses})
        self._channel = DriverChannel(
            self._job.size,
            bytes.fromhex(self._job.key),
            bind,
            driver_port,
            on_frame=self._receive,
            on_lost=lambda rank, rule: self._inbox.put((rank, rule)),
        )
        stack.callback(self._channel.close)
        self._started_at = time.monotonic()
        self._notice_at = self._started_at + _SAY_AFTER_S
        stack.callback(self._leave_stage)
        want_lines = supervisor.listener.on_line is not None
        self._stage.start(advertised, self._channel.port, want_lines=want_lines)

    # --- what tasks send ------------------------------------------------------------------------------------------

    def _receive(self, rank: int, frame: Frame) -> None:
        """Handles a frame, in the channel's thread.

        Raises:
            LaunchError: If a task cannot send this kind of frame, or it is incomplete.
        """
        if frame.kind == Kind.EVENT:
            told = frame.json()
            event = checked_event(rank, told.get("kind"), told.get("data"))
            if event.kind in SHOWN_KINDS:
                self._supervisor.output.put(event)  # deciding events never wait behind lines
            else:
                self._inbox.put((rank, event))
        elif frame.kind == Kind.HELLO:
            check_hello(frame.json())
            self._inbox.put((rank, frame))
        elif frame.kind == Kind.VALUE and rank == 0:
            self._keep(frame.body)
        elif frame.kind != Kind.BEAT:
            raise LaunchError(f"the task of rank {rank} cannot send a frame of kind {frame.kind}")
        self._heard_at[rank] = time.monotonic()

    def _keep(self, piece: bytes) -> None:
        if self._unwritten is None:
            try:
                append(self._large, piece)
            except OSError as error:
                self._unwritten = error

    # --- what the supervisor does ---------------------------------------------------------------------------------

    @property
    def reachable(self) -> bool:
        """Whether every task has connected."""
        return len(self._hellos) == self._job.size

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
        """Takes all deciding events, waits if there are none, and looks for tasks that are missing or silent.

        Raises:
            NotEnoughSlotsError: If no task has started in time, because other jobs hold the slots.
            LaunchError: If tasks have started and do not report.
            ClusterConfigurationError: If an executor differs from the driver.
        """
        with contextlib.suppress(queue.Empty):
            self._take(self._inbox.get(timeout=timeout_s))
            for _ in range(self._inbox.qsize()):
                self._take(self._inbox.get_nowait())
        now = time.monotonic()
        if not self.reachable and self._done is None:
            self._wait_for_slots(now)
        self._look_for_silence(now)

    def send(self, rank: int, kind: Kind, body: bytes) -> None:
        """Sends a frame to one rank's task."""
        self._channel.send(rank, kind, body)

    def close_stores(self) -> None:
        """Closes the store of each task."""
        self._channel.send_all(Kind.CLOSE_STORE)

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
        """Ends all ranks and the Spark job, and waits for both."""
        self._channel.send_all(Kind.END, {"dump": list(stacks_of)})
        self._wait_for(self._all_ended, _STAGE_END_S / 3)
        if self._done is None:
            self._stage.cancel()
            self._wait_for(self._all_ended, _STAGE_END_S)

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

    def _take(self, item: tuple[int, Frame | RankEvent | str | None] | StageEnd) -> None:
        if isinstance(item, StageEnd):
            self._done, self._done_at = item, time.monotonic()
            return
        rank, told = item
        if isinstance(told, RankEvent):
            self._supervisor.hear(told)
        elif told is None or isinstance(told, str):
            self._hung_up.add(rank)
            if not self._record.ranks[rank].gone:
                self._lose(rank, _LOST if told is None else f"sent what the driver does not take: {told}")
        else:
            self._hellos[rank] = told.json()
            self._record.ranks[rank].host = self._hellos[rank]["host"]
            if self.reachable:
                self._assign()

    def _lose(self, rank: int, reason: str) -> None:
        self._supervisor.hear(RankEvent(rank, "lost", {"reason": reason}))

    def _assign(self) -> None:
        """Sends every rank its place, once all tasks have connected."""
        hellos = [self._hellos[rank] for rank in range(self._job.size)]
        check_executors(hellos, needs_horovod=self._job.needs_horovod)
        placements = place(group_by_machine(hellos))
        gpus = executor_gpus(placements, hellos, wanted=self._job.gpus)
        single_host = len({hello["machine"] for hello in hellos}) == 1
        for placement in placements:
            environment = horovod_environment(placement, "", self._job.stall_timeout_s)
            environment |= visible_to_rank(gpus[placement.rank], placement.local_rank, wanted=self._job.gpus)
            told = assignment(self._job, placement, environment)
            self._channel.send(placement.rank, Kind.ASSIGN, {**told, "single_host": single_host})

    def _wait_for_slots(self, now: float) -> None:
        """Reports what the job waits for, and gives up after `slots_wait_s`."""
        name, waited = self._job.name, now - self._started_at
        missing = self._job.size - len(self._hellos)
        if waited > max(self._slots_wait_s, _SAY_AFTER_S) and not self._hellos and not self._stage.has_slots():
            raise NotEnoughSlotsError(
                f"{name}: none of {self._job.size} tasks could start within {self._slots_wait_s:g} s; "
                f"a barrier stage needs all its slots free at once, {shortage(self._spark)}, and "
                f"{self._stage.other_jobs()}; end other jobs, wait longer (slots_wait_s), or use fewer ranks"
            )
        if waited > self._slots_wait_s + self._job.stall_timeout_s:
            raise LaunchError(f"{name}: {missing} of {self._job.size} tasks never reported to the driver")
        if now >= self._notice_at:
            self._notice_at = now + 10 * _SAY_AFTER_S
            self._supervisor.listener.on_notice(
                f"{name} waits for {missing} of {self._job.size} tasks to start; {self._stage.other_jobs()}"
            )

    def _look_for_silence(self, now: float) -> None:
        longest = max(self._record.patience_s, _SILENT_BEATS * BEAT_S)
        for rank, heard_at in enumerate(self._heard_at):
            if heard_at is not None and not self._record.ranks[rank].gone and now - heard_at > longest:
                self._lose(rank, f"gave no sign of life for {now - heard_at:.0f} s; its executor or host hangs")

    def _wait_for(self, condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not condition():
            with contextlib.suppress(queue.Empty):
                self._take(self._inbox.get(timeout=0.05))

    def _all_ended(self) -> bool:
        ranks = self._record.ranks
        return self._done is not None and all(ranks[rank].gone or ranks[rank].lost for rank in self._hellos)

    def _leave_stage(self) -> None:
        """Ends what still runs, even after an interruption."""
        if self._done is None and self._stage.is_started:
            self.end()
