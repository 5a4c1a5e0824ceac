"""Ranks as the tasks of one Spark barrier stage: the driver's side."""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ....errors import LaunchError, NotEnoughSlotsError, RankFailedError
from ....spark.port import application_of, master_of, setting_of
from ....spark.workers import reason_of
from ...rank.frames import Frame, Kind
from ..placement.conversation import Conversation
from ..placement.gpus import executor_gpus, group_by_machine, visible_to_rank
from ..placement.job import Job, Listener, assignment, horovod_environment, new_record, place
from ..processes.events import check_hello, checked_event
from ..processes.failure_verdict import Failure
from ..processes.rank_process import append, temporary_file
from ..processes.rank_record import RankEvent
from ..processes.return_value import read_value
from .barrier_stage import BarrierStage, StageEnd
from .barrier_task import BEAT_S
from .driver_channel import DriverChannel
from .event_inbox import EventInbox
from .executor_checks import check_executors, explained, listening_address
from .preflight import check_cluster
from .skipped_output import SkippedOutput
from .slots import reserve, shortage, slots_now

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_S = 0.25
# Spark needs this long to notice that a task has ended and to end the stage.
_STAGE_END_S = 15.0
# A busy machine delays a heartbeat; only several missing ones count, even with a short stall timeout.
_SILENT_BEATS = 4
_SAY_AFTER_S = 5.0
_ACCOUNTS_S = 2.0
# Longest time in which a task tries to send a piece of rank 0's value.
_QUIET_S = 30.0
# Time for lines before the driver checks deciding events again.
_SHOW_S = 0.25
# Time for the remaining lines of a failed job.
_SHOW_REST_S = 5.0


_LOST = "lost contact with the driver: its executor was lost, or its Python worker was ended"


def run_on_cluster(
    spark: SparkSession, job: Job, listener: Listener, *, slots_wait_s: float, driver_port: int = 0
) -> Any:
    """Runs a job as one barrier stage and gives rank 0's value.

    Returns or raises after every process of the job has ended.

    Raises:
        NotEnoughSlotsError: If the cluster has fewer slots, or they do not come free within `slots_wait_s`.
        ClusterConfigurationError: If settings do not allow the job, or an executor's Python differs from the driver's.
        RankFailedError: If a rank fails.
        Exception: Whatever `listener.on_question` raises.
    """
    check_cluster(spark, job, slots_wait_s, listener.on_notice)
    application = application_of(spark)
    with reserve(application, job.name, job.size, lambda: slots_now(spark), slots_wait_s, notice=listener.on_notice):
        with contextlib.ExitStack() as stack:
            return _BarrierRun(spark, job, listener, slots_wait_s, driver_port, stack).wait()


class _BarrierRun:
    """One start of a job on the cluster.

    Args:
        spark: The session.
        job: The job.
        listener: The caller's callbacks.
        slots_wait_s: How long its tasks may take to start.
        driver_port: Where the driver listens; 0 for any port.
        stack: Collects the closing function of each resource at once, so that an interrupted start leaves nothing.
    """

    def __init__(
        self,
        spark: SparkSession,
        job: Job,
        listener: Listener,
        slots_wait_s: float,
        driver_port: int,
        stack: contextlib.ExitStack,
    ) -> None:
        self._spark, self._job, self._listener, self._slots_wait_s = spark, job, listener, slots_wait_s
        self._record = new_record(job)
        self._conversation = Conversation(job.size, listener.on_question, listener.controls, self._say)
        self._skipped = SkippedOutput(job.name)
        stack.callback(self._skipped.close)
        self._inbox: EventInbox[tuple[int, Frame | RankEvent | str | None] | StageEnd] = EventInbox(
            job.size, self._skip
        )
        self._hellos: dict[int, dict[str, Any]] = {}
        self._heard_at: list[float | None] = [None] * job.size
        self._hung_up: set[int] = set()
        self._done: StageEnd | None = None
        self._done_at = 0.0
        self._say_skipped_at = 0.0
        self._store_closed = False
        self._unwritten: OSError | None = None
        self._stage = BarrierStage(spark, job, self._inbox.put)
        stack.callback(self._stage.join, _STAGE_END_S)
        stack.callback(self._stage.release)
        self._large = stack.enter_context(temporary_file())
        addresses = ("spark.driver.host", "spark.driver.bindAddress")
        bind, advertised = listening_address(master_of(spark), {key: setting_of(spark, key) for key in addresses})
        self._channel = DriverChannel(
            job.size,
            bytes.fromhex(job.key),
            bind,
            driver_port,
            on_frame=self._receive,
            on_lost=lambda rank, rule: self._inbox.put((rank, rule)),
        )
        stack.callback(self._channel.close)
        self._started_at = time.monotonic()
        stack.callback(self._leave_stage)
        self._stage.start(advertised, self._channel.port, want_lines=listener.on_line is not None)

    # --- what tasks send ------------------------------------------------------------------------------------------

    def _receive(self, rank: int, frame: Frame) -> None:
        """Handles a frame, in the channel's thread.

        Raises:
            LaunchError: If a task cannot send this kind of frame, or it is incomplete.
        """
        if frame.kind == Kind.EVENT:
            told = frame.json()
            event = checked_event(rank, told.get("kind"), told.get("data"))
            if event.kind in ("line", "message"):
                self._inbox.put_shown(event)
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

    # --- waiting --------------------------------------------------------------------------------------------------

    def wait(self) -> Any:
        """Follows the job to its end."""
        next_notice = self._started_at + _SAY_AFTER_S
        while True:
            self._take_deciding()
            if len(self._hellos) == self._job.size:
                self._conversation.reply()
            self._listener.controls.raise_if_ended()
            self._show()
            now = time.monotonic()
            if len(self._hellos) < self._job.size and self._done is None:
                next_notice = self._wait_for_slots(now, next_notice)
            self._look_for_silence(now)
            failure = self._record.failure(self._conversation.now())
            if failure is not None:
                raise self._failed(failure) from None
            if self._record.all_joined and not self._store_closed:
                self._store_closed = True
                self._channel.send_all(Kind.CLOSE_STORE)
            if self._done is not None and not self._may_still_hear(self._done, now):
                self._show_rest(math.inf if self._done.error is None else _SHOW_REST_S)
                return self._value(self._done)

    def _may_still_hear(self, done: StageEnd, now: float) -> bool:
        """Returns whether to wait for the ranks' reports: Spark's result uses another channel and may be first."""
        if done.error is not None:
            return self._record.has_evidence or now - self._done_at < _ACCOUNTS_S
        if len(self._hung_up) == self._job.size:
            return False
        complete = self._record.all_returned and 0 in self._hung_up
        arrived_at = max(self._done_at, *(heard_at or 0.0 for heard_at in self._heard_at))
        return now - arrived_at < (_ACCOUNTS_S if complete else _QUIET_S)

    def _failed(self, failure: Failure) -> LaunchError:
        """Ends the stage and makes the error; raise it `from None`, or Spark's stack traces precede the user's."""
        if failure.reason == "lost":
            # Spark has more information on a lost task: a cancelled job, a lost executor.
            self._wait_for(lambda: self._done is not None, _ACCOUNTS_S)
            if self._done is not None and self._done.error is not None:
                known = explained(self._done.error, self._job.name)
                if not isinstance(known, RankFailedError) or known.reason == "cancelled":
                    self._end_stage()
                    self._show_rest(_SHOW_REST_S)
                    return known
                failure = replace(failure, sentence=f"{failure.sentence} (Spark says: {reason_of(self._done.error)})")
        self._end_stage(failure.rank if failure.reason == "stalled" else None)
        self._show_rest(_SHOW_REST_S)
        return self._record.error(failure)

    def _take_deciding(self) -> None:
        """Takes all deciding events; waits briefly if there are none."""
        for item in self._inbox.take(_POLL_S):
            self._take(item)

    def _show(self) -> None:
        """Shows lines for a limited time."""
        deadline = time.monotonic() + _SHOW_S
        while (event := self._inbox.take_shown()) is not None:
            self._hear(event)
            if time.monotonic() >= deadline:
                break
        if deadline >= self._say_skipped_at:
            self._say_skipped()
            self._say_skipped_at = deadline + _SAY_AFTER_S

    def _skip(self, event: RankEvent) -> None:
        if self._listener.wants(event):
            self._skipped.keep(event)

    def _say_skipped(self) -> None:
        notice = self._skipped.take_notice()
        if notice is not None:
            self._listener.on_notice(notice)

    def _show_rest(self, seconds: float) -> None:
        """Shows the remaining lines of ranks; lines without time to show are in the error's log and in a file."""
        deadline = time.monotonic() + seconds
        while (event := self._inbox.take_shown()) is not None:
            if time.monotonic() < deadline:
                self._hear(event)
            else:
                self._record.record(event, self._conversation.now())
                self._skip(event)
        self._say_skipped()

    def _take(self, item: tuple[int, Frame | RankEvent | str | None] | StageEnd) -> None:
        if isinstance(item, StageEnd):
            self._done, self._done_at = item, time.monotonic()
            return
        rank, told = item
        if isinstance(told, RankEvent):
            self._hear(told)
        elif told is None or isinstance(told, str):
            self._hung_up.add(rank)
            record = self._record.ranks[rank]
            if not record.gone:
                reason = _LOST if told is None else f"sent what the driver does not take: {told}"
                self._hear(RankEvent(rank, "lost", {"reason": reason}))
        else:
            self._hellos[rank] = told.json()
            self._record.ranks[rank].host = self._hellos[rank]["host"]
            if len(self._hellos) == self._job.size:
                self._assign()

    def _hear(self, event: RankEvent) -> None:
        self._record.record(event, self._conversation.now())
        self._conversation.hear(event)
        self._listener.hear(event)

    def _say(self, rank: int, kind: Kind, body: bytes) -> None:
        # A task whose rank has ended may be closing its connection.
        if not self._record.ranks[rank].left:
            self._channel.send(rank, kind, body)

    def _assign(self) -> None:
        """Sends every rank its place, once all tasks have connected."""
        hellos = [self._hellos[rank] for rank in range(self._job.size)]
        check_executors(hellos)
        placements = place(group_by_machine(hellos))
        gpus = executor_gpus(placements, hellos, wanted=self._job.gpus)
        single_host = len({hello["machine"] for hello in hellos}) == 1
        for placement in placements:
            environment = horovod_environment(placement, "", self._job.stall_timeout_s)
            environment |= visible_to_rank(gpus[placement.rank], placement.local_rank, wanted=self._job.gpus)
            told = assignment(self._job, placement, environment)
            self._channel.send(placement.rank, Kind.ASSIGN, {**told, "single_host": single_host})

    def _wait_for_slots(self, now: float, next_notice: float) -> float:
        """Reports what the job waits for, and gives up after `slots_wait_s`."""
        waited = now - self._started_at
        missing = self._job.size - len(self._hellos)
        if waited > max(self._slots_wait_s, _SAY_AFTER_S) and not self._hellos and not self._stage.has_slots():
            others = self._stage.other_jobs()
            self._end_stage()
            raise NotEnoughSlotsError(
                f"{self._job.name}: none of {self._job.size} tasks could start within {self._slots_wait_s:g} s; "
                f"a barrier stage needs all its slots free at once, {shortage(self._spark)}, and {others}; "
                f"end other jobs, wait longer (slots_wait_s), or use fewer ranks"
            )
        if waited > self._slots_wait_s + self._job.stall_timeout_s:
            self._end_stage()
            raise LaunchError(f"{self._job.name}: {missing} of {self._job.size} tasks never reported to the driver")
        if now >= next_notice:
            self._listener.on_notice(
                f"{self._job.name} waits for {missing} of {self._job.size} tasks to start; {self._stage.other_jobs()}"
            )
            return now + 10 * _SAY_AFTER_S
        return next_notice

    def _look_for_silence(self, now: float) -> None:
        longest = max(self._record.patience_s, _SILENT_BEATS * BEAT_S)
        for rank, heard_at in enumerate(self._heard_at):
            if heard_at is not None and not self._record.ranks[rank].gone and now - heard_at > longest:
                reason = f"gave no sign of life for {now - heard_at:.0f} s; its executor or host hangs"
                self._hear(RankEvent(rank, "lost", {"reason": reason}))

    # --- the end --------------------------------------------------------------------------------------------------

    def _value(self, done: StageEnd) -> Any:
        if done.error is not None:
            raise explained(done.error, self._job.name) from done.error
        if not self._record.all_returned:
            raise LaunchError(f"{self._job.name}: Spark says that the job is done, but not every rank has returned")
        if self._unwritten is not None:
            raise LaunchError(
                f"{self._job.name}: the folder for temporary files, {tempfile.gettempdir()}, has no space for rank 0's "
                f"value ({self._unwritten}); free space there, set TMPDIR to another folder, or save the object and "
                f"return its path"
            )
        skeleton, large = b"".join(done.chunks or []), self._record.value["large"]
        received = self._large.seek(0, 2)
        if received != sum(size for _, size in large):
            raise LaunchError(f"{self._job.name}: rank 0's value arrived in part only ({received} bytes); run it again")
        self._large.seek(0)
        return read_value(skeleton, large, self._large)

    def _end_stage(self, dump: int | None = None) -> None:
        """Ends all ranks and the Spark job, and waits for both; rank `dump` first writes its stacks into its log."""
        self._channel.send_all(Kind.END, {"dump": [dump] if dump is not None else []})
        self._wait_for_stage(_STAGE_END_S / 3)
        if self._done is None:
            self._stage.cancel()
            self._wait_for_stage(_STAGE_END_S)

    def _wait_for_stage(self, seconds: float) -> None:
        self._wait_for(lambda: self._done is not None and self._all_reported(), seconds)

    def _wait_for(self, condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not condition():
            self._take_deciding()
            self._show()

    def _all_reported(self) -> bool:
        return all(self._record.ranks[rank].gone or self._record.ranks[rank].lost for rank in self._hellos)

    def _leave_stage(self) -> None:
        """Ends what still runs, even after an interruption."""
        if self._done is None and self._stage.is_started:
            self._end_stage()
