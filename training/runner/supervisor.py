"""Follows the ranks of one start of a job to its end, wherever they run: the one place that decides.

A starter makes the ranks: `local_ranks` as processes of the driver, `spark.stage_ranks` as tasks of a barrier stage. It
reports their events here and carries out what the supervisor wants of them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ...errors import LaunchError
from ..rank.frames import Kind
from .output import SHOWN_KINDS, Output
from .placement.conversation import Conversation
from .placement.job import Job, Listener
from .processes.failure_verdict import Failure, JobRecord
from .processes.rank_record import RankEvent

_STEP_S = 0.25
# Time for lines before the supervisor looks at deciding events again.
_SHOW_S = 0.25
# Time for the remaining lines of a failed job.
_SHOW_REST_S = 5.0


class Ranks(Protocol):
    """The started ranks of a job; a base class. Leaving their context ends every rank that still runs."""

    @property
    def reachable(self) -> bool:
        """Whether frames can be sent to every rank."""

    @property
    def ended(self) -> bool:
        """Whether nothing of the job runs any more, and everything that its ranks reported has arrived."""

    def step(self, timeout_s: float) -> None:
        """Waits for events, at most `timeout_s`, and reports them to `Supervisor.hear`."""

    def send(self, rank: int, kind: Kind, body: bytes) -> None:
        """Sends a frame to one rank."""

    def close_stores(self) -> None:
        """Closes the stores through which ranks have found one another."""

    def explain(self, failure: Failure) -> Failure | LaunchError:
        """Adds to a failure what the starter knows about it; an error replaces the failure."""
        return failure

    def end(self, stacks_of: Sequence[int]) -> None:
        """Ends all ranks; some first write the stacks of their threads into their logs. Returns after the last."""

    def value(self) -> Any:
        """Returns rank 0's value once the ranks have ended."""


class Supervisor:
    """Supervises one start of a job, in the thread that calls `run`."""

    def __init__(self, job: Job, listener: Listener) -> None:
        self.job, self.listener = job, listener
        shows_lines = listener.on_line is not None and listener.is_seen
        self.record = JobRecord(job.size, job.stall_timeout_s, job.attempt + 1, shows_lines=shows_lines)
        self.output = Output(job, listener, self._record)
        self._conversation = Conversation(job.size, listener.on_question, listener.controls, self._send)
        self._ranks: Ranks | None = None

    def hear(self, event: RankEvent) -> None:
        """Takes an event of a rank, in the order in which they came."""
        if event.kind in SHOWN_KINDS:
            self.output.put(event)
        else:
            self._record(event)
            self._conversation.hear(event)

    def run(self, start: Callable[[Supervisor], AbstractContextManager[Ranks]]) -> Any:
        """Starts the ranks and returns rank 0's value. Returns or raises after every process of the job has ended."""
        with contextlib.closing(self.output), start(self) as ranks:
            self._ranks = ranks
            self._follow(ranks)
            self.output.show_rest(math.inf if self.record.all_returned else _SHOW_REST_S)
            return ranks.value()

    def _follow(self, ranks: Ranks) -> None:
        stores_open, on_ready = True, self.listener.on_ready
        while not ranks.ended:
            ranks.step(0.0 if self.output.waits else _STEP_S)
            self.output.show(_SHOW_S)
            if ranks.reachable:
                self._conversation.reply()
            if on_ready is not None and self.record.all_ready:
                on_ready()
                on_ready = None
            self.listener.controls.raise_if_ended()
            failure = self.record.failure(self._conversation.now())
            if failure is not None:
                # Without the context: Spark's stack traces would precede the user's.
                raise self._failed(ranks, failure) from None
            if stores_open and self.record.all_joined:
                stores_open = False
                ranks.close_stores()

    def _failed(self, ranks: Ranks, failure: Failure) -> LaunchError:
        """Ends the ranks before the error is raised, so that nothing still runs, and makes the error."""
        explained = ranks.explain(failure)
        ranks.end([failure.rank] if failure.reason == "stalled" else [])
        self.output.show_rest(_SHOW_REST_S)
        return explained if isinstance(explained, LaunchError) else self.record.error(explained)

    def _record(self, event: RankEvent) -> None:
        self.record.record(event, self._conversation.now())

    def _send(self, rank: int, kind: Kind, body: bytes) -> None:
        # A rank that has ended may be closing its connection.
        if self._ranks is not None and not self.record.ranks[rank].left:
            self._ranks.send(rank, kind, body)
