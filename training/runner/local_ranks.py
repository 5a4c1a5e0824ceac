"""Starts ranks as processes of the driver, connected through the loopback interface only."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from ..rank.frames import Kind
from ..rank.network import loopback_interface
from .placement.gpus import driver_gpus, list_driver_gpus, visible_to_rank
from .placement.job import assignment, horovod_environment, place, rank_spec
from .processes.gloo_store import LoopbackStore
from .processes.process_watch import ProcessWatch
from .processes.rank_process import temporary_file
from .processes.return_value import read_value
from .supervisor import Ranks, Supervisor


@contextlib.contextmanager
def start_on_driver(supervisor: Supervisor) -> Iterator[LocalRanks]:
    """Starts the ranks of a job; leaving the context ends them."""
    with contextlib.ExitStack() as stack:
        yield LocalRanks(supervisor, stack)


class LocalRanks(Ranks):
    """Ranks as processes of the driver."""

    reachable = True

    def __init__(self, supervisor: Supervisor, stack: contextlib.ExitStack) -> None:
        job = supervisor.job
        self._record = supervisor.record
        payload = stack.enter_context(temporary_file(job.payload))
        self._value = stack.enter_context(temporary_file())
        self._store = stack.enter_context(contextlib.closing(LoopbackStore(job.size))) if job.size > 1 else None
        self._watch = stack.enter_context(ProcessWatch(supervisor.hear))
        gpus = driver_gpus(job.size, wanted=job.gpus, available=list_driver_gpus({**os.environ, **job.environment}))
        for placement in place(["localhost"] * job.size):
            process = self._watch.start(rank_spec(job, placement.rank, payload, self._value))
            variables = horovod_environment(placement, loopback_interface(), job.stall_timeout_s)
            variables |= visible_to_rank(gpus, placement.local_rank, wanted=job.gpus)
            if self._store is not None:
                variables |= self._store.environment
            variables |= job.environment
            process.assign(assignment(job, placement, variables), job.key)

    @property
    def ended(self) -> bool:
        """Whether every rank has returned and no process remains."""
        return self._record.all_returned and self._watch.gone

    def step(self, timeout_s: float) -> None:
        """Waits for events and reports them."""
        self._watch.step(timeout_s)

    def send(self, rank: int, kind: Kind, body: bytes) -> None:
        """Sends a frame to one rank."""
        self._watch.ranks[rank].send(kind, body)

    def close_stores(self) -> None:
        """Closes the store."""
        if self._store is not None:
            self._store.close()

    def end(self, stacks_of: Sequence[int]) -> None:
        """Ends all ranks."""
        if stacks_of:
            self._watch.dump_stacks(stacks_of)
        self._watch.end()

    def value(self) -> Any:
        """Returns rank 0's value."""
        found = self._record.value
        self._value.seek(0)
        return read_value(self._value.read(found["pickle"]), found["large"], self._value)
