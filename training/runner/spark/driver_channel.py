"""The driver's end of the one network connection that lakelens adds to a barrier job: from each task to the driver.

The driver listens on one interface until every task has connected, then stops listening. Received data is bounded,
and is JSON or opaque bytes: nothing is unpickled. `sealed_frames` protects a connection.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from ....errors import LaunchError
from ...rank.frames import Frame, Kind, pack, unpack_pair
from .sealed_frames import MAC_BYTES, NONCE_BYTES, Seal, SealedReader, new_nonce, prove, same, session_key

HANDSHAKE_TIMEOUT_S = 5.0
# If more than this is unsent, the task is lost.
MAX_UNSENT_BYTES = 64 << 20
_STRANGERS_AT_ONCE = 32


class _Connection:
    """The driver's end of one connection."""

    def __init__(self, sock: socket.socket, secret: bytes) -> None:
        self.socket = sock
        self.rank: int | None = None
        self.opened_at = time.monotonic()
        self.closed = False
        self.unsent = bytearray()
        self._secret = secret
        self._nonce = new_nonce()
        self._greeting = bytearray()
        self._reader: SealedReader | None = None
        self._seal: Seal | None = None
        self.unsent += self._nonce

    def feed(self, data: bytes) -> Iterator[Frame]:
        if self._reader is None:
            self._greeting += data
            if len(self._greeting) < NONCE_BYTES + MAC_BYTES:
                return
            data = self._prove()
        if self._reader is not None:
            yield from self._reader.feed(data)

    def _prove(self) -> bytes:
        """Checks the task's proof and answers with the driver's; returns the bytes after it."""
        greeting = bytes(self._greeting)
        nonce, proof = greeting[:NONCE_BYTES], greeting[NONCE_BYTES : NONCE_BYTES + MAC_BYTES]
        if not same(proof, prove(self._secret, b"task", self._nonce, nonce)):
            raise LaunchError("a client without the job's secret was refused")
        key = session_key(self._secret, self._nonce, nonce)
        self._reader = SealedReader(Seal(key, b"to driver"))
        self._seal = Seal(key, b"to task")
        self.opened_at = time.monotonic()  # the driver's own delay does not count
        self.unsent += prove(self._secret, b"driver", nonce, self._nonce)
        return greeting[NONCE_BYTES + MAC_BYTES :]

    def queue(self, frame: bytes) -> None:
        if self._seal is None:
            raise LaunchError("a frame cannot be sent before the handshake")
        self.unsent += frame + self._seal.mac(frame)


class DriverChannel:
    """The driver's side: accepts each rank's task once, forwards its frames, relays rendezvous values between tasks.

    Args:
        size: Number of ranks.
        secret: The job's secret.
        address: IP address to listen on; never all interfaces.
        port: Port to listen on; 0 takes any.
        on_frame: Called with rank and frame, from the channel's thread; the first of each rank, and only that, is its
            HELLO. A LaunchError that it raises ends the rank's connection.
        on_lost: Called with a rank whose connection ended, and with the rule that it broke, if any.

    Raises:
        LaunchError: If it cannot listen there.
    """

    def __init__(
        self,
        size: int,
        secret: bytes,
        address: str,
        port: int,
        on_frame: Callable[[int, Frame], None],
        on_lost: Callable[[int, str | None], None],
    ) -> None:
        self._size, self._secret = size, secret
        self._on_frame, self._on_lost = on_frame, on_lost
        self._selector = selectors.DefaultSelector()
        self._connections: dict[int, _Connection] = {}
        self._lock = threading.Lock()
        self._outbox: list[tuple[int, bytes]] = []
        self._stopping = False
        try:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            self._listener: socket.socket | None = socket.create_server(
                (address, port), family=family, backlog=min(size + 16, 1024)
            )
        except OSError as error:
            raise LaunchError(
                f"the driver cannot listen on {address}:{port} ({error}), where the ranks' tasks report; "
                f"free the port, or give spark.driver.bindAddress an address of this machine"
            ) from error
        self.port: int = self._listener.getsockname()[1]
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._strangers: set[_Connection] = set()
        self._thread = threading.Thread(target=self._serve, name="lakelens-channel", daemon=True)
        self._thread.start()

    def send(self, rank: int, kind: Kind, body: bytes | dict[str, Any] = b"") -> None:
        """Sends a frame to one rank's task, from any thread."""
        self._post([(rank, pack(kind, body))])

    def send_all(self, kind: Kind, body: bytes | dict[str, Any] = b"") -> None:
        """Sends a frame to every task."""
        frame = pack(kind, body)
        self._post([(rank, frame) for rank in range(self._size)])

    def _post(self, frames: list[tuple[int, bytes]]) -> None:
        with self._lock:
            if self._stopping:
                return
            self._outbox += frames
        self._wake()

    def _wake(self) -> None:
        # A full pipe wakes the thread too.
        with contextlib.suppress(OSError):
            self._waker.send(b"x")

    def close(self) -> None:
        """Closes every connection and stops listening."""
        with self._lock:
            already, self._stopping = self._stopping, True
        if not already:
            self._wake()
        self._thread.join(timeout=5)

    # --- the channel's thread -------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self._stopping:
                for key, mask in self._selector.select(1.0):
                    if key.fileobj is self._woken:
                        self._woken.recv(65536)
                    elif key.data is None:
                        self._accept()
                    elif not key.data.closed:
                        # An earlier event of the same poll may have closed it.
                        self._service(key.data, mask)
                self._dispatch()
                self._refuse_the_slow()
        finally:
            self._shut()

    def _accept(self) -> None:
        if self._listener is None:
            return
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        if len(self._strangers) >= _STRANGERS_AT_ONCE + self._size:
            sock.close()
            return
        sock.setblocking(False)
        connection = _Connection(sock, self._secret)
        self._strangers.add(connection)
        self._selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)

    def _service(self, connection: _Connection, mask: int) -> None:
        try:
            if mask & selectors.EVENT_READ:
                self._read(connection)
            if connection.unsent:
                self._write(connection)
        except OSError:
            self._drop(connection)
        except LaunchError as error:
            self._drop(connection, str(error))

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(262144)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionResetError
        for frame in connection.feed(data):
            if connection.rank is None:
                self._welcome(connection, frame)
            elif frame.kind == Kind.HELLO:
                raise LaunchError("a task introduces itself once")
            if frame.kind == Kind.PUT:
                unpack_pair(frame.body)  # an invalid pair must not reach the other tasks
                packed = pack(Kind.PUT, frame.body)
                for rank, other in list(self._connections.items()):
                    if rank != connection.rank:
                        self._queue(other, packed)
            elif connection.rank is not None:
                self._on_frame(connection.rank, frame)

    def _welcome(self, connection: _Connection, frame: Frame) -> None:
        rank = frame.json().get("rank") if frame.kind == Kind.HELLO else None
        if type(rank) is not int or not 0 <= rank < self._size or rank in self._connections:
            raise LaunchError(f"a task introduced itself as rank {rank!r}")
        connection.rank = rank
        self._connections[rank] = connection
        self._strangers.discard(connection)
        if len(self._connections) == self._size:
            self._stop_listening()

    def _write(self, connection: _Connection) -> None:
        try:
            sent = connection.socket.send(connection.unsent)
            del connection.unsent[:sent]
        except BlockingIOError:
            pass
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
        self._selector.modify(connection.socket, events, connection)

    def _queue(self, connection: _Connection, frame: bytes) -> None:
        connection.queue(frame)
        if len(connection.unsent) > MAX_UNSENT_BYTES:
            self._drop(connection)
        else:
            self._selector.modify(connection.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)

    def _dispatch(self) -> None:
        with self._lock:
            frames, self._outbox = self._outbox, []
        for rank, frame in frames:
            connection = self._connections.get(rank)
            if connection is not None:
                self._queue(connection, frame)

    def _refuse_the_slow(self) -> None:
        now = time.monotonic()
        for connection in [c for c in self._strangers if now - c.opened_at > HANDSHAKE_TIMEOUT_S]:
            self._drop(connection)

    def _drop(self, connection: _Connection, rule: str | None = None) -> None:
        self._strangers.discard(connection)
        if connection.closed:
            return
        connection.closed = True
        self._selector.unregister(connection.socket)
        connection.socket.close()
        if connection.rank is not None and self._connections.pop(connection.rank, None) is not None:
            self._on_lost(connection.rank, rule)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None
            for connection in list(self._strangers):
                self._drop(connection)

    def _shut(self) -> None:
        self._dispatch()
        self._stop_listening()
        for connection in list(self._connections.values()):
            connection.socket.setblocking(True)
            connection.socket.settimeout(1.0)
            with contextlib.suppress(OSError):
                connection.socket.sendall(connection.unsent)
            connection.socket.close()
        self._selector.close()
        self._woken.close()
        self._waker.close()
