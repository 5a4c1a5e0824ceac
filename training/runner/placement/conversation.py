"""Messages between ranks and driver while a job runs: ranks ask and wait for answers, the driver informs all ranks."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ....errors import RankFailedError
from ...rank.frames import Kind, said
from ..processes.rank_record import RankEvent

OnQuestion = Callable[[int, dict[str, Any]], dict[str, Any]]


class Controls:
    """The driver's messages to the ranks of a job. Every rank gets all of them, in order, at every start of the job."""

    def __init__(self) -> None:
        self._told: list[bytes] = []
        self._ended = False
        self.signal_number: int = signal.SIGINT  # The signal that has interrupted the job

    def tell(self, body: dict[str, Any]) -> None:
        """Sends a message to every rank, now or once it has joined; takes no lock: signal handlers may call it."""
        self._told.append(said("a message to ranks", body))

    def pause(self, signal_number: int) -> None:
        """Tells every rank to pause after a checkpoint, as a signal handler does."""
        self.signal_number = signal_number
        self.tell({"pause": True})

    def end(self) -> None:
        """Ends the job at once, from any thread; waiting for it raises an error with the reason `cancelled`."""
        self._ended = True

    def raise_if_ended(self) -> None:
        """Raises in the thread that waits for the job."""
        if self._ended:
            raise RankFailedError("the job was ended by the driver", reason="cancelled")

    def since(self, count: int) -> list[bytes]:
        """Returns the messages after the first `count` ones, as bodies of TELL."""
        return self._told[count:]


class Conversation:
    """The driver's part in one start of a job. Belongs to the thread that waits for the job."""

    def __init__(
        self, size: int, on_question: OnQuestion | None, controls: Controls, send: Callable[[int, Kind, bytes], None]
    ) -> None:
        self._size, self._on_question, self._controls, self._send = size, on_question, controls, send
        self._asked: deque[RankEvent] = deque()
        self._told = 0
        self._thought_s = 0.0

    def hear(self, event: RankEvent) -> None:
        """Takes an event of a rank; a question is answered by the next `reply`."""
        if event.kind == "asked":
            self._asked.append(event)

    def reply(self) -> None:
        """Answers questions in order, and sends pending messages; a rank gets messages before its answer."""
        self._tell()
        while self._asked:
            event = self._asked.popleft()
            body = said("the answer to a rank's question", self._answer(event), event.data["number"])
            self._tell()
            self._send(event.rank, Kind.ANSWER, body)

    def now(self) -> float:
        """Returns seconds of a clock that stops while the driver computes an answer: waiting for it is not a stall."""
        return time.monotonic() - self._thought_s

    def _answer(self, event: RankEvent) -> dict[str, Any]:
        if self._on_question is None:
            return {}
        started = time.monotonic()
        try:
            return self._on_question(event.rank, event.data["body"])
        finally:
            self._thought_s += time.monotonic() - started

    def _tell(self) -> None:
        for body in self._controls.since(self._told):
            self._told += 1
            for rank in range(self._size):
                self._send(rank, Kind.TELL, body)
