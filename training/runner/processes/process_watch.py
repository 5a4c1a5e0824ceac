"""Watches the processes of the driver's ranks, or of a barrier task's rank, from one thread, and ends them."""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import time
from collections.abc import Callable, Iterable

from ...rank.frames import STACK_SIGNAL
from .rank_process import SOFT_END_S, RankProcess, RankSpec
from .rank_record import RankEvent

# A rank whose function has returned may still have threads or exit handlers that never end.
EXIT_GRACE_S = 10.0
_DRAIN_S = 1.0
_DUMP_S = 0.5


class ProcessWatch:
    """Watches ranks from one thread. Use as a context manager: leaving it ends every rank."""

    def __init__(self, emit: Callable[[RankEvent], None]) -> None:
        self._emit = emit
        self._selector = selectors.DefaultSelector()
        self.ranks: dict[int, RankProcess] = {}
        self._closing: dict[int, float] = {}

    def __enter__(self) -> ProcessWatch:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if not self.gone:
                self.end()
        finally:
            for process in self.ranks.values():
                if not process.ended:
                    process.destroy()
                process.close()
            self._selector.close()

    def start(self, spec: RankSpec) -> RankProcess:
        """Starts one rank."""
        process = RankProcess(spec, self._emit)
        self.ranks[spec.rank] = process
        for name, stream in process.streams.items():
            os.set_blocking(stream.fileno(), False)
            self.watch(stream.fileno(), functools.partial(process.take_output, name))
        self.watch(process.line.fileno(), process.take_frames)
        self.watch(process.status, process.take_status)
        return process

    def watch(self, descriptor: int, take: Callable[[bytes], None]) -> None:
        """Also watches a pipe or socket: `take` gets its bytes, empty at its end."""
        self._selector.register(descriptor, selectors.EVENT_READ, take)

    def step(self, timeout_s: float) -> None:
        """Waits for events, at most `timeout_s`, and emits them."""
        for key, _ in self._selector.select(timeout_s):
            try:
                data = os.read(key.fd, 65536)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            if not data:
                self._selector.unregister(key.fd)
            key.data(data)
        self._tend(time.monotonic())

    def _tend(self, now: float) -> None:
        for rank, process in self.ranks.items():
            process.flush()
            if process.keeper_gone and not process.ended:
                # A process that escaped with the rank's output open must not delay the end.
                deadline = self._closing.setdefault(rank, now + _DRAIN_S)
                if not self._open(process) or now > deadline:
                    process.report_end()
                    self._emit(RankEvent(rank, "gone"))
            elif process.left_at is not None and now - process.left_at > EXIT_GRACE_S and not process.ended:
                process.left_at = now
                process.command(b"T")

    def _open(self, process: RankProcess) -> bool:
        watched = self._selector.get_map()
        return any(stream.fileno() in watched for stream in process.streams.values())

    @property
    def gone(self) -> bool:
        """Returns whether no process of any rank remains."""
        return all(process.ended for process in self.ranks.values())

    def dump_stacks(self, ranks: Iterable[int]) -> None:
        """Makes ranks write the stacks of their Python threads into their logs: where a stalled rank hangs."""
        for rank in ranks:
            process = self.ranks.get(rank)
            if process is not None and process.pid is not None and not process.ended:
                with contextlib.suppress(OSError):
                    os.kill(process.pid, STACK_SIGNAL)
        deadline = time.monotonic() + _DUMP_S
        while time.monotonic() < deadline:
            self.step(0.05)

    def end(self) -> None:
        """Ends every rank with SIGTERM, then SIGKILL; returns when no process of them remains."""
        for process in self.ranks.values():
            process.command(b"T")
        self._step_until_gone(SOFT_END_S + 2.0)
        if not self.gone:
            for process in self.ranks.values():
                process.command(b"K")
            self._step_until_gone(2.0)
        if not self.gone:
            for process in self.ranks.values():
                process.destroy()
            self._step_until_gone(2.0)

    def _step_until_gone(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self.gone and time.monotonic() < deadline:
            self.step(0.05)
