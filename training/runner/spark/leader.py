"""Decides about a job in rank 0's task, where executors cannot reach the driver: as the client of Spark Connect.

The tasks report to it as they report to a driver that they can reach. It answers no question of a rank and sends no
message: ranks then decide themselves. The rows of its task tell the client how the job has ended.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import queue
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from ....errors import ClusterConfigurationError, LakelensError, LaunchError
from ..placement.conversation import Controls
from ..placement.job import Listener
from ..processes.gloo_store import LOOPBACK
from ..processes.rank_record import RankEvent
from ..supervisor import Supervisor
from .channel_ranks import STAGE_END_S, ChannelRanks
from .executor_checks import address_of
from .task_channel import PIECE_BYTES, TaskPlan

# Of all messages and of the last lines of each rank: a server sends 128 MiB at once, and the client keeps them.
_KEPT_BYTES = 32 << 20
_EVENT_BYTES = 100  # pickled, without its text
_ENDS_S = 60.0


@dataclass
class Outcome:
    """How a job has ended, as rank 0's task tells the client."""

    error: LakelensError | None = None  # Why it failed; None if every rank has returned
    value: dict[str, Any] = field(default_factory=dict)  # Where rank 0's value is in what follows (see `return_value`)
    # The last messages of the ranks and their last lines, in the order in which they came
    events: deque[RankEvent] = field(default_factory=deque)
    notices: list[str] = field(default_factory=list)  # Notices of the launcher


class Heard:
    """The last messages and lines of a job, up to the size that the client gets, and the number of dropped ones."""

    def __init__(self) -> None:
        self.events: deque[RankEvent] = deque()
        self.dropped = self._bytes = 0

    def add(self, event: RankEvent) -> None:
        """Adds one, and drops the oldest if they are too large."""
        self.events.append(event)
        self._bytes += _bytes_of(event)
        while self._bytes > _KEPT_BYTES:
            self._bytes -= _bytes_of(self.events.popleft())
            self.dropped += 1


def _bytes_of(event: RankEvent) -> int:
    return _EVENT_BYTES + len(event.data["text"].encode("utf-8", "surrogatepass"))


def address_for(hosts: Sequence[str]) -> str:
    """Chooses where the tasks meet: rank 0's host, or the loopback interface if it is the host of all."""
    return LOOPBACK if len(set(hosts)) == 1 else hosts[0]


class Leader:
    """The supervisor of a job in rank 0's task; use as a context manager."""

    port: int  # Where it listens, once the context is entered; 0 if it cannot, and `told` then gives the reason

    def __init__(self, plan: TaskPlan, address: str) -> None:
        self._plan, self._address = plan, address
        self._controls, self._outcome, self._all_gone = Controls(), Outcome(), True
        self._started: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._lead, name="lakelens-leader", daemon=True)

    def __enter__(self) -> Leader:
        self._thread.start()
        self.port = self._started.get()
        return self

    def __exit__(self, *_: object) -> None:
        self._controls.end()
        self._thread.join(timeout=_ENDS_S)

    def told(self, value: IO[bytes]) -> Iterator[bytes]:
        """Waits for the end of the job and gives what its client reads: an Outcome, b"", rank 0's value in pieces."""
        self._thread.join()
        error = self._outcome.error
        if error is not None and not self._all_gone:
            raise LaunchError(getattr(error, "summary", str(error)))
        yield from _pieces(io.BytesIO(pickle.dumps(self._outcome)))
        yield b""
        if error is None:
            value.seek(0)
            yield from _pieces(value)

    def _lead(self) -> None:
        heard = Heard()
        listener = Listener(
            on_line=lambda rank, stream, text: heard.add(RankEvent(rank, "line", {"stream": stream, "text": text})),
            on_message=lambda text: heard.add(RankEvent(0, "message", {"text": text})),
            on_notice=self._outcome.notices.append,
            controls=self._controls,
            is_seen=False,
        )
        try:
            self._outcome.value = Supervisor(self._plan.job, listener).run(self._start)
        except Exception as error:  # noqa: BLE001 - told to the client, whatever it is
            known = error if isinstance(error, LakelensError) else LaunchError(f"{type(error).__name__}: {error}")
            self._outcome.error = known
            self._started.put(0)  # of use if it has not started
        finally:
            self._outcome.events = heard.events
            if heard.dropped:
                self._outcome.notices.append(
                    f"{self._plan.job.name}: the oldest {heard.dropped} lines and messages of ranks were dropped; the "
                    f"last {_KEPT_BYTES >> 20} MiB are shown"
                )

    @contextlib.contextmanager
    def _start(self, supervisor: Supervisor) -> Iterator[LedRanks]:
        with contextlib.ExitStack() as stack:
            ranks = LedRanks(supervisor, self._plan, self._address, stack)
            self._started.put(ranks.port)
            try:
                yield ranks
            finally:
                self._all_gone = ranks.leave()


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(PIECE_BYTES):
        yield piece


class LedRanks(ChannelRanks):
    """Ranks as tasks that rank 0's task leads."""

    def __init__(self, supervisor: Supervisor, plan: TaskPlan, host: str, stack: contextlib.ExitStack) -> None:
        address = address_of(host, f"SPARK_LOCAL_HOSTNAME, {host!r} for rank 0's executor,")
        try:
            super().__init__(supervisor, address, plan.port, stack, plan.version)
        except LaunchError as error:
            raise ClusterConfigurationError(
                f"rank 0's task cannot listen on {address}:{plan.port} ({error.__cause__}); free the port on {host}, "
                f"or set driver_port to another, or to 0 for any"
            ) from error
        self._reports_within_s = plan.reports_within_s
        self._deadline = time.monotonic() + plan.reports_within_s

    def step(self, timeout_s: float) -> None:
        """Takes all deciding events, waits if there are none, and looks for tasks that are missing or silent."""
        super().step(timeout_s)
        if not self.reachable and time.monotonic() > self._deadline:
            raise LaunchError(
                f"{self._job.size - len(self._hellos)} of {self._job.size} tasks never reported to rank 0's task "
                f"within {self._reports_within_s:g} s"
            )

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._channel.port

    @property
    def ended(self) -> bool:
        """Whether every rank has returned and every task has closed its connection."""
        return self._record.all_returned and len(self._hung_up) == self._job.size

    def value(self) -> dict[str, Any]:
        """Returns where rank 0's value is in its file, which this task has."""
        return self._record.value

    def leave(self) -> bool:
        """Ends the ranks that still run; returns whether none remains, as far as their tasks have told."""
        self.end()
        self._wait_for(self._all_ended, STAGE_END_S)
        return all(rank.gone for rank in self._record.ranks)
