"""A rank's end of its line to the launcher: reports, questions and messages from the driver.

No dedicated thread reads the line: a thread that waits for an answer reads it, and `told` reads the frames received so
far. Until then frames stay in the socket, so a rank that never asks has no overhead.
"""

from __future__ import annotations

import itertools
import socket
import threading
from typing import Any

from ...errors import LaunchError
from .frames import Frame, FrameReader, Kind, pack, said


class DriverLine:
    """The line; any thread may use it."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self.socket = sock
        self._sending = threading.Lock()
        self._receiving = threading.Lock()
        self._reader = FrameReader()
        self._closed = False
        self._assignment: dict[str, Any] | None = None
        self._numbers = itertools.count(1)
        self._answers: dict[int, dict[str, Any] | None] = {}
        self._told: dict[str, Any] = {}

    def send(self, kind: Kind, body: bytes | dict[str, Any] = b"") -> None:
        """Sends one frame to the supervisor."""
        frame = pack(kind, body)
        with self._sending:
            try:
                self.socket.sendall(frame)
            except OSError:
                # The supervisor is gone and the keeper is about to end this process.
                return

    def assignment(self) -> dict[str, Any] | None:
        """Waits for the rank's assignment; None if the line is closed before it comes."""
        while self._assignment is None and not self._closed:
            self._receive()
        return self._assignment

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        """Asks the driver and waits for its answer."""
        number = next(self._numbers)
        question = said("a question to the driver", body, number)
        self._answers[number] = None
        try:
            self.send(Kind.ASK, question)
            while (answer := self._answers[number]) is None:
                with self._receiving:
                    if self._closed:
                        raise LaunchError("the driver does not answer: the line to the launcher is closed")
                    # Another thread may have read the answer meanwhile.
                    if self._answers[number] is None:
                        self._receive()
            return answer
        finally:
            del self._answers[number]

    def report(self, body: dict[str, Any]) -> None:
        """Sends a question without waiting for an answer."""
        self.send(Kind.ASK, said("a report to the driver", body))

    def told(self) -> dict[str, Any]:
        """Returns the latest messages of the driver, without waiting."""
        # A thread that waits for an answer also receives messages.
        if self._receiving.acquire(blocking=False):
            try:
                while not self._closed and self._receive(socket.MSG_DONTWAIT):
                    pass
            finally:
                self._receiving.release()
        return dict(self._told)

    def _receive(self, flags: int = 0) -> bool:
        """Reads the received bytes; returns whether there were any."""
        try:
            data = self.socket.recv(65536, flags)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._closed = True
            return False
        try:
            for frame in self._reader.feed(data):
                self._take(frame)
        except LaunchError:
            self._closed = True
            raise
        return True

    def _take(self, frame: Frame) -> None:
        if self._assignment is None:
            if frame.kind != Kind.ASSIGN:
                raise LaunchError(f"a rank expects its assignment first, got a frame of kind {frame.kind}")
            self._assignment = frame.json()
        elif frame.kind == Kind.ANSWER:
            number, body = frame.said()
            if number in self._answers:
                self._answers[number] = body
        elif frame.kind == Kind.TELL:
            # Replaced, not changed: `told` copies it from another thread.
            self._told = {**self._told, **frame.said()[1]}
        else:
            raise LaunchError(f"a rank cannot receive a frame of kind {frame.kind}")
