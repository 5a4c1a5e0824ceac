"""What a barrier task gets through Spark, and its end of the connection to the driver; see `driver_channel`."""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ....errors import LaunchError
from ...rank.frames import Frame, Kind, pack
from ..placement.job import Job
from .sealed_frames import MAC_BYTES, NONCE_BYTES, Seal, SealedReader, prove, session_key

# Of a value that is larger.
PIECE_BYTES = 8 << 20
BEAT_S = 2.0
CONNECT_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class TaskPlan:
    """What every task of a job gets through Spark."""

    job: Job  # The job; its payload is empty if it is a broadcast variable
    address: str  # Where the driver listens; empty if rank 0's task leads the job (`leader`)
    port: int  # Its port there, or that of rank 0's task
    want_lines: bool  # Whether the driver wants every line as it is written
    version: str  # lakelens' version on the driver
    reports_within_s: float  # How long rank 0's task, if it leads, waits for the others
    listener: str = "the driver"  # What listens at the address, as errors name it


class TaskChannel:
    """A task's side."""

    def __init__(
        self, address: str, port: int, secret: bytes, hello: dict[str, Any], listener: str = "the driver"
    ) -> None:
        self.lost = False
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        try:
            while True:
                try:
                    theirs, ours, proof = self._connect(address, port, secret)
                    break
                except OSError:
                    # Foreign clients may temporarily occupy the driver's connections.
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.2)
        except OSError as error:
            raise LaunchError(
                f"rank {hello['rank']} on {socket.gethostname()} cannot reach {listener} at {address}:{port} "
                f"({error}); the network "
                f"must let executors connect to that address, as it lets them to spark.driver.host (a fixed "
                f"port: driver_port=...)"
            ) from error
        if not hmac.compare_digest(proof, prove(secret, b"driver", ours, theirs)):
            self.socket.close()
            raise LaunchError(f"what listens on {address}:{port} is not this job's driver")
        key = session_key(secret, theirs, ours)
        self._seal = Seal(key, b"to driver")
        self._reader = SealedReader(Seal(key, b"to task"))
        self._lock = threading.Lock()
        self.socket.settimeout(30.0)
        self.send(Kind.HELLO, hello)

    def _connect(self, address: str, port: int, secret: bytes) -> tuple[bytes, bytes, bytes]:
        """Connects and exchanges proofs: the driver's nonce, the task's, the driver's proof."""
        self.socket = socket.create_connection((address, port), timeout=CONNECT_TIMEOUT_S)
        try:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            theirs = self._receive(NONCE_BYTES)
            ours = secrets.token_bytes(NONCE_BYTES)
            self.socket.sendall(ours + prove(secret, b"task", theirs, ours))
            return theirs, ours, self._receive(MAC_BYTES)
        except OSError:
            self.socket.close()
            raise

    def _receive(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise ConnectionResetError("it hung up")
            data += more
        return data

    def send(self, kind: Kind, body: bytes | dict[str, Any] = b"") -> None:
        """Sends a frame to the driver, from any thread; if that fails, `lost` is set."""
        frame = pack(kind, body)
        with self._lock:
            try:
                if not self.lost:
                    self.socket.sendall(frame + self._seal.mac(frame))
            except OSError:
                # Part of a frame may have been sent: later frames would be unreadable.
                self.lost = True

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Divides the bytes read from `socket` into frames."""
        return self._reader.feed(data)

    def close(self) -> None:
        """Closes the connection once the driver has read everything."""
        # If a frame arrives unread or after the end, TCP resets the connection and drops unsent data.
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
            self.socket.settimeout(CLOSE_TIMEOUT_S)
            while self.socket.recv(65536):
                pass
        self.socket.close()
