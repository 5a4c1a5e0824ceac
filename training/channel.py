"""The one network connection that lakelens adds to a barrier job: from each task to the driver.

The driver listens on one interface until every task has connected, then stops listening. Both sides prove with
HMAC-SHA256 that they hold the job's secret, which travels with the task by Spark's own channel; every frame then
carries an HMAC of a key made for the connection, a direction and a running number, so that none can be forged, repeated
or reordered. Frames are bounded, and their bodies are JSON or opaque bytes, never unpickled. Bodies are not encrypted:
they are addresses and log lines.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import LaunchError
from .wire import HEADER, MAX_BODY_BYTES, Frame, Kind, pack

NONCE_BYTES = 32
MAC_BYTES = 32
HANDSHAKE_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 10.0
# A driver that cannot send this much to a task has lost it.
MAX_UNSENT_BYTES = 64 << 20
_STRANGERS_AT_ONCE = 32
_KEY_LENGTH = struct.Struct(">H")


def _mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"".join(struct.pack(">I", len(part)) + part for part in parts), "sha256")


class Seal:
    """Signs the frames of one direction of one connection."""

    def __init__(self, key: bytes, direction: bytes) -> None:
        self._key = _mac(key, b"direction", direction)
        self._number = 0

    def mac(self, data: bytes) -> bytes:
        """Gives the HMAC of the next frame."""
        self._number += 1
        return _mac(self._key, struct.pack(">Q", self._number), data)


class SealedReader:
    """Cuts a stream into frames and checks the HMAC of each."""

    def __init__(self, seal: Seal) -> None:
        self._seal = seal
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Takes bytes and yields the frames that are complete and genuine.

        Raises:
            LaunchError: If a frame is too large or its HMAC is wrong.
        """
        self._buffer += data
        while len(self._buffer) >= HEADER.size:
            kind, length = HEADER.unpack_from(self._buffer)
            if length > MAX_BODY_BYTES:
                raise LaunchError(f"a frame announces {length} bytes; at most {MAX_BODY_BYTES} are accepted")
            end = HEADER.size + length
            if len(self._buffer) < end + MAC_BYTES:
                return
            signed, mac = bytes(self._buffer[:end]), bytes(self._buffer[end : end + MAC_BYTES])
            del self._buffer[: end + MAC_BYTES]
            if not hmac.compare_digest(mac, self._seal.mac(signed)):
                raise LaunchError("a frame's HMAC is wrong; the connection is closed")
            yield Frame(kind, signed[HEADER.size :])


def pack_pair(key: str, value: bytes) -> bytes:
    """Makes the body of a PUT."""
    raw = key.encode()
    return _KEY_LENGTH.pack(len(raw)) + raw + value


def unpack_pair(body: bytes) -> tuple[str, bytes]:
    """Reads the body of a PUT."""
    (length,) = _KEY_LENGTH.unpack_from(body)
    start = _KEY_LENGTH.size
    return body[start : start + length].decode("utf-8", "replace"), body[start + length :]


class _Connection:
    """The driver's end of one connection."""

    def __init__(self, sock: socket.socket, secret: bytes) -> None:
        self.socket = sock
        self.rank: int | None = None
        self.opened_at = time.monotonic()
        self.unsent = bytearray()
        self._secret = secret
        self._nonce = secrets.token_bytes(NONCE_BYTES)
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
        """Checks the task's proof and answers with ours; gives the bytes that came after it."""
        greeting = bytes(self._greeting)
        nonce, proof = greeting[:NONCE_BYTES], greeting[NONCE_BYTES : NONCE_BYTES + MAC_BYTES]
        if not hmac.compare_digest(proof, _mac(self._secret, b"task", self._nonce, nonce)):
            raise LaunchError("a client without the job's secret was refused")
        key = _mac(self._secret, b"session", self._nonce, nonce)
        self._reader = SealedReader(Seal(key, b"to driver"))
        self._seal = Seal(key, b"to task")
        self.unsent += _mac(self._secret, b"driver", nonce, self._nonce)
        return greeting[NONCE_BYTES + MAC_BYTES :]

    def queue(self, frame: bytes) -> None:
        if self._seal is None:
            raise LaunchError("a frame cannot be sent before the handshake")
        self.unsent += frame + self._seal.mac(frame)


class DriverChannel:
    """The driver's side: accepts each rank's task once, passes its frames on, relays rendezvous values between tasks.

    Args:
        size: Number of ranks.
        secret: The job's secret.
        address: IP address to listen on; never all interfaces.
        port: Port to listen on; 0 takes any.
        on_frame: Called with rank and frame, from the channel's thread; the first of each rank is its HELLO.
        on_lost: Called with a rank whose connection ended.

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
        on_lost: Callable[[int], None],
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
        # A full pipe wakes the thread just as well.
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
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.fileobj is self._woken:
                        self._woken.recv(65536)
                    else:
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
        except (OSError, LaunchError):
            self._drop(connection)

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
            if frame.kind == Kind.PUT:
                packed = pack(Kind.PUT, frame.body)
                for rank, other in self._connections.items():
                    if rank != connection.rank:
                        self._queue(other, packed)
            elif connection.rank is not None:
                self._on_frame(connection.rank, frame)

    def _welcome(self, connection: _Connection, frame: Frame) -> None:
        rank = frame.json().get("rank") if frame.kind == Kind.HELLO else None
        if not isinstance(rank, int) or not 0 <= rank < self._size or rank in self._connections:
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

    def _drop(self, connection: _Connection) -> None:
        self._strangers.discard(connection)
        try:
            self._selector.unregister(connection.socket)
        except KeyError:
            return
        connection.socket.close()
        if connection.rank is not None and self._connections.pop(connection.rank, None) is not None:
            self._on_lost(connection.rank)

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


class TaskChannel:
    """A task's side.

    Args:
        address: Where the driver listens.
        port: Its port there.
        secret: The job's secret.
        hello: The task's introduction; holds its `rank`.

    Raises:
        LaunchError: If the driver cannot be reached or does not hold the secret.
    """

    def __init__(self, address: str, port: int, secret: bytes, hello: dict[str, Any]) -> None:
        self.lost = False
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        try:
            while True:
                try:
                    theirs, ours, proof = self._connect(address, port, secret)
                    break
                except OSError:
                    # Strangers may have taken the driver's places for a moment.
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.2)
        except OSError as error:
            raise LaunchError(
                f"rank {hello['rank']} on {socket.gethostname()} cannot reach the driver at {address}:{port} "
                f"({error}); the network "
                f"must let executors connect to that address, as it lets them to spark.driver.host (a fixed "
                f"port: driver_port=...)"
            ) from error
        if not hmac.compare_digest(proof, _mac(secret, b"driver", ours, theirs)):
            self.socket.close()
            raise LaunchError(f"what listens on {address}:{port} is not this job's driver")
        key = _mac(secret, b"session", theirs, ours)
        self._seal = Seal(key, b"to driver")
        self._reader = SealedReader(Seal(key, b"to task"))
        self._lock = threading.Lock()
        self.socket.settimeout(30.0)
        self.send(Kind.HELLO, hello)

    def _connect(self, address: str, port: int, secret: bytes) -> tuple[bytes, bytes, bytes]:
        """Connects and exchanges proofs: their nonce, ours, their proof."""
        self.socket = socket.create_connection((address, port), timeout=CONNECT_TIMEOUT_S)
        try:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            theirs = self._receive(NONCE_BYTES)
            ours = secrets.token_bytes(NONCE_BYTES)
            self.socket.sendall(ours + _mac(secret, b"task", theirs, ours))
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
                # Part of a frame may be on its way: nothing after it would be understood.
                self.lost = True

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Cuts what was read from `socket` into frames."""
        return self._reader.feed(data)

    def close(self) -> None:
        """Closes the connection."""
        self.socket.close()
