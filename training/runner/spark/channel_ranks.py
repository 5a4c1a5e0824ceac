"""Ranks that are tasks of a barrier stage, as their supervisor sees them: through a `DriverChannel`."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Sequence
from typing import Any

from ....errors import LaunchError
from ...rank.frames import Frame, Kind
from ..output import SHOWN_KINDS
from ..placement.gpus import executor_gpus, group_by_machine, visible_to_rank
from ..placement.job import assignment, horovod_environment, place
from ..processes.rank_record import RankEvent, check_hello, checked_event
from ..supervisor import Ranks, Supervisor
from .driver_channel import DriverChannel
from .executor_checks import check_executors
from .task_channel import BEAT_S

# Spark needs this long to notice that a task has ended and to end the stage.
STAGE_END_S = 15.0
# A busy machine delays a heartbeat; with a short stall timeout, too, only several missing ones count.
_SILENT_BEATS = 4
_LOST = "lost contact with the driver: its executor was lost, or its Python worker was ended"


class ChannelRanks(Ranks):
    """Ranks as tasks that report over a channel."""

    def __init__(
        self, supervisor: Supervisor, address: str, port: int, stack: contextlib.ExitStack, version: str | None = None
    ) -> None:
        self._version = version
        self._supervisor, self._job, self._record = supervisor, supervisor.job, supervisor.record
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._hellos: dict[int, dict[str, Any]] = {}
        self._heard_at: list[float | None] = [None] * self._job.size
        self._hung_up: set[int] = set()
        self._channel = DriverChannel(
            self._job.size,
            bytes.fromhex(self._job.key),
            address,
            port,
            on_frame=self._receive,
            on_lost=lambda rank, rule: self._inbox.put((rank, rule)),
        )
        stack.callback(self._channel.close)

    # --- what tasks send ------------------------------------------------------------------------------------------

    def _receive(self, rank: int, frame: Frame) -> None:
        """Handles a frame, in the channel's thread."""
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
        elif frame.kind != Kind.BEAT:
            raise LaunchError(f"the task of rank {rank} cannot send a frame of kind {frame.kind}")
        self._heard_at[rank] = time.monotonic()

    # --- what the supervisor does ---------------------------------------------------------------------------------

    @property
    def reachable(self) -> bool:
        """Whether every task has connected."""
        return len(self._hellos) == self._job.size

    def step(self, timeout_s: float) -> None:
        """Takes all deciding events, waits if there are none, and looks for tasks that are silent."""
        with contextlib.suppress(queue.Empty):
            self._take(self._inbox.get(timeout=timeout_s))
            for _ in range(self._inbox.qsize()):
                self._take(self._inbox.get_nowait())
        self._look_for_silence(time.monotonic())

    def send(self, rank: int, kind: Kind, body: bytes) -> None:
        """Sends a frame to one rank's task."""
        self._channel.send(rank, kind, body)

    def close_stores(self) -> None:
        """Closes the store of each task."""
        self._channel.send_all(Kind.CLOSE_STORE)

    def end(self, stacks_of: Sequence[int] = ()) -> None:
        """Ends all ranks and waits for them."""
        self._channel.send_all(Kind.END, {"dump": list(stacks_of)})
        self._wait_for(self._all_ended, STAGE_END_S / 3)

    # --- the parts ------------------------------------------------------------------------------------------------

    def _take(self, item: Any) -> None:
        """Takes what a task has sent: its rank with an event, its HELLO, or the end of its connection."""
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
        check_executors(hellos, needs_horovod=self._job.needs_horovod, version=self._version)
        placements = place(group_by_machine(hellos))
        gpus = executor_gpus(placements, hellos, wanted=self._job.gpus)
        single_host = len({hello["machine"] for hello in hellos}) == 1
        for placement in placements:
            environment = horovod_environment(placement, "", self._job.stall_timeout_s)
            environment |= visible_to_rank(gpus[placement.rank], placement.local_rank, wanted=self._job.gpus)
            told = assignment(self._job, placement, environment)
            self._channel.send(placement.rank, Kind.ASSIGN, {**told, "single_host": single_host})

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
        return all(ranks[rank].gone or ranks[rank].lost for rank in self._hellos)
