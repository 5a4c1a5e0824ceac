"""The body of one barrier task: it starts one rank, watches it, and reports to the driver.

The task itself never imports TensorFlow: it runs in a Python worker that Spark reuses.
"""

from __future__ import annotations

import contextlib
import os
import platform
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any

from ....error_reports import report_of
from ....errors import LaunchError
from ....horovod_build import problem
from ...rank.frames import MAX_BODY_BYTES, Frame, Kind, pack_pair, unpack_pair
from ...rank.network import executor_key, interface_of, loopback_interface, machine_key
from ..placement.job import rank_spec
from ..processes.gloo_store import LoopbackStore
from ..processes.process_watch import ProcessWatch
from ..processes.rank_process import temporary_file
from ..processes.rank_record import KEPT_LOG_LINES, RankEvent
from .task_channel import BEAT_S, PIECE_BYTES, TaskChannel, TaskPlan

if TYPE_CHECKING:
    from pyspark import Broadcast

    from ....spark.port import Inline

# A task whose rank has failed waits this long for the driver to read it before it fails itself, and with it the stage.
END_WAIT_S = 10.0
_STEP_S = 0.25


def task_function(
    plan: TaskPlan, payload: Broadcast[bytes] | Inline[bytes]
) -> Callable[[Iterable[Any]], Iterator[bytes]]:
    """Makes the function that Spark calls in each task."""

    def body(_: Iterable[Any]) -> Iterator[bytes]:
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        rank = context.partitionId()
        hosts = [info.address.rpartition(":")[0] for info in context.getTaskInfos()]
        gpu = context.resources().get("gpu")
        gpus = list(gpu.addresses) if gpu else []
        if plan.address:
            yield from _Task(plan, rank, hosts[rank], gpus).run(payload.value)
        else:
            yield from _led(plan, rank, hosts, gpus, payload.value, context.allGather)

    return body


def _led(
    plan: TaskPlan,
    rank: int,
    hosts: Sequence[str],
    gpus: list[str],
    payload: bytes,
    all_gather: Callable[[str], list[str]],
) -> Iterator[bytes]:
    """Runs one rank of a job that rank 0's task leads, and gives, from rank 0, how the job has ended."""
    from .leader import Leader, address_for

    address = address_for(hosts)
    with contextlib.ExitStack() as stack:
        leader = stack.enter_context(Leader(plan, address)) if rank == 0 else None
        port = int(_gathered(all_gather, "0" if leader is None else str(leader.port), plan.reports_within_s)[0])
        function, value = (stack.enter_context(temporary_file(content)) for content in (payload, b""))
        if port:  # else rank 0's task cannot lead, and tells the client why
            meeting = replace(plan, address=address, port=port, listener="rank 0's task")
            task = _Task(meeting, rank, hosts[rank], gpus)
            task.follow(function, value)
            task.leave()
        if leader is not None:
            yield from leader.told(value)


def _gathered(all_gather: Callable[[str], list[str]], told: str, within_s: float) -> list[str]:
    """Returns what every task tells; Spark itself would wait a year for one that hangs."""
    answers: queue.SimpleQueue[list[str] | BaseException] = queue.SimpleQueue()

    def gather() -> None:
        try:
            answers.put(all_gather(told))
        except BaseException as error:  # noqa: BLE001 - raised by the task
            answers.put(error)

    threading.Thread(target=gather, name="lakelens-gathers", daemon=True).start()
    try:
        answer = answers.get(timeout=within_s)
    except queue.Empty:
        raise LaunchError(f"a task never reported to the others within {within_s:g} s") from None
    if isinstance(answer, BaseException):
        raise answer
    return answer


class _Task:
    """One rank on this executor."""

    def __init__(self, plan: TaskPlan, rank: int, host: str, gpus: list[str]) -> None:
        import lakelens

        self.plan, self.job, self.rank, self.host = plan, plan.job, rank, host
        self._returned: dict[str, Any] | None = None
        self._to_end = self._refused = False
        self._dump = False
        self._kept: deque[dict[str, Any]] = deque(maxlen=KEPT_LOG_LINES)
        self._channel = TaskChannel(
            plan.address,
            plan.port,
            bytes.fromhex(plan.job.key),
            {
                "rank": rank,
                "host": host,
                "machine": machine_key(),
                "executor": executor_key(),
                "python": platform.python_version(),
                "version": lakelens.__version__,
                "problem": problem() if plan.job.size > 1 else None,
                "gpus": gpus,
                "visible_gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
            },
            plan.listener,
        )
        self._store = LoopbackStore(plan.job.size, self._share) if plan.job.size > 1 else None

    def run(self, payload: bytes) -> Iterator[bytes]:
        """Runs the rank to its end and gives, from rank 0, the pickled value in pieces."""
        with temporary_file(payload) as function, temporary_file() as value:
            self.follow(function, value)
            pickled = self._send_value(value)
            self.leave()
            if self._returned is None:
                raise LaunchError(
                    f"rank {self.rank} on {self.host} did not finish; the driver's RankFailedError shows why"
                )
            yield from pickled

    def follow(self, function: IO[bytes], value: IO[bytes]) -> None:
        """Starts the rank and follows it to its end."""
        try:
            with ProcessWatch(self._hear) as watch:
                self._follow(watch, function, value)
        finally:
            if self._store is not None:
                self._store.close()

    def leave(self) -> None:
        """Closes the connection once the driver knows how the rank has ended."""
        if self._returned is None:
            self._wait_for_the_driver()
        self._channel.close()

    def _follow(self, watch: ProcessWatch, function: IO[bytes], value: IO[bytes]) -> None:
        self._process = watch.start(rank_spec(self.job, self.rank, function, value))
        watch.watch(self._channel.socket.fileno(), self._read)
        next_beat = 0.0
        while not watch.gone:
            watch.step(_STEP_S)
            now = time.monotonic()
            if now >= next_beat:
                next_beat = now + BEAT_S
                self._channel.send(Kind.BEAT)
            if self._to_end or self._refused or self._channel.lost:
                if self._dump:
                    watch.dump_stacks([self.rank])
                watch.end()

    def _read(self, data: bytes) -> None:
        """Carries out the driver's frames; the rank ends when the driver wants it, is gone or breaks the protocol."""
        try:
            frames = list(self._channel.feed(data))
        except LaunchError:
            data, frames = b"", []
        self._to_end = self._to_end or not data
        try:
            for frame in frames:
                self._take(frame)
        except LaunchError as error:  # the rank cannot be placed
            self._refused = True
            self._hear(RankEvent(self.rank, "raised", {**report_of(error), "shown": "", "consequence": False}))

    def _take(self, frame: Frame) -> None:
        if frame.kind == Kind.ASSIGN:
            assignment = frame.json()
            if self._store is not None:
                # Where Gloo listens: on loopback if all ranks share a machine, else on the interface to the driver.
                own_address = self._channel.socket.getsockname()[0]
                interface = loopback_interface() if assignment["single_host"] else interface_of(own_address)
                assignment["env"] |= {
                    **self._store.environment,
                    "HOROVOD_GLOO_IFACE": interface,
                    "NCCL_SOCKET_IFNAME": interface,
                }
            assignment["env"].update(self.job.environment)
            self._process.assign(assignment, self.job.key)
        elif frame.kind in (Kind.ANSWER, Kind.TELL):
            self._process.send(Kind(frame.kind), frame.body)
        elif frame.kind == Kind.PUT and self._store is not None:
            self._store.put(*unpack_pair(frame.body), local=False)
        elif frame.kind == Kind.CLOSE_STORE and self._store is not None:
            self._store.close()
        elif frame.kind == Kind.END:
            self._to_end = True
            self._dump = self.rank in frame.json().get("dump", [])

    def _share(self, key: str, value: bytes) -> None:
        self._channel.send(Kind.PUT, pack_pair(key, value))

    def _hear(self, event: RankEvent) -> None:
        """Forwards an event of the rank to the driver."""
        if event.kind == "returned":
            self._returned = event.data
        data = {**event.data, "host": self.host} if event.kind == "started" else event.data
        if event.kind == "line" and not self.plan.want_lines:
            self._kept.append(data)
            return
        if event.kind == "ended":
            for line in self._kept:
                self._channel.send(Kind.EVENT, {"kind": "line", "data": line})
        self._channel.send(Kind.EVENT, {"kind": event.kind, "data": data})

    def _send_value(self, value: IO[bytes]) -> list[bytes]:
        """Sends the value's large buffers to the driver and gives its pickle, in pieces, for Spark."""
        if self.rank != 0 or self._returned is None:
            return []
        value.seek(0)
        left, pieces = self._returned["pickle"], []
        while left > 0:
            pieces.append(value.read(min(left, PIECE_BYTES)))
            left -= len(pieces[-1])
        while piece := value.read(MAX_BODY_BYTES):
            self._channel.send(Kind.VALUE, piece)
        return pieces

    def _wait_for_the_driver(self) -> None:
        """Gives the driver time to read the reason before Spark ends the stage."""
        self._channel.socket.settimeout(END_WAIT_S)
        deadline = time.monotonic() + END_WAIT_S
        with contextlib.suppress(OSError):
            while not self._to_end and time.monotonic() < deadline:
                self._read(self._channel.socket.recv(65536))
