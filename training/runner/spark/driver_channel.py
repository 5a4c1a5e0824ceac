"""The driver's end of the one network connection that lakelens adds to a barrier job: from each task to the driver.

The driver listens on one interface until every task has connected, then stops listening. Received data is bounded,
and is JSON or opaque bytes: nothing is unpickled. `sealed_frames` protects a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
import socket
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Sequence
from typing import Any

from ....errors import LaunchError
from ...rank.frames import Frame, Kind, pack, unpack_pair
from .sealed_frames import MAC_BYTES, NONCE_BYTES, Seal, SealedReader, prove, session_key

HANDSHAKE_TIMEOUT_S = 5.0
# If more than this is unsent, the task is lost.
MAX_UNSENT_BYTES = 64 << 20
_STRANGERS_AT_ONCE = 32
_READ_BYTES = 1 << 18
# Time for the last frames to a task when the channel closes.
_CLOSE_S = 1.0


class _Connection:
    """The driver's end of one connection; `rank` has no value before its task has introduced itself."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self.rank: int | None = None
        self.closed = False
        self.writer = writer
        self._reader = reader

    async def shake_hands(self, secret: bytes) -> None:
        """Checks that the client holds the job's secret, and proves that the driver does."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        self.writer.write(nonce)
        greeting = await self._reader.readexactly(NONCE_BYTES + MAC_BYTES)
        theirs, proof = greeting[:NONCE_BYTES], greeting[NONCE_BYTES:]
        if not hmac.compare_digest(proof, prove(secret, b"task", nonce, theirs)):
            raise LaunchError("a client without the job's secret was refused")
        key = session_key(secret, nonce, theirs)
        self._frames, self._seal = SealedReader(Seal(key, b"to driver")), Seal(key, b"to task")
        self.writer.write(prove(secret, b"driver", theirs, nonce))

    async def read(self) -> list[Frame]:
        """Waits for at least one frame; empty at the end of the connection."""
        frames: list[Frame] = []
        while not frames and (data := await self._reader.read(_READ_BYTES)):
            frames = list(self._frames.feed(data))
        return frames

    def send(self, frame: bytes) -> None:
        """Sends a frame without waiting for the task to read it."""
        self.writer.write(frame + self._seal.mac(frame))


class DriverChannel:
    """The driver's side: accepts each rank's task once, forwards its frames, relays rendezvous values between tasks."""

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
        self._connections: dict[int, _Connection] = {}
        self._strangers: set[_Connection] = set()
        self._stopping = asyncio.Event()
        try:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            listener = socket.create_server((address, port), family=family, backlog=min(size + 16, 1024))
        except OSError as error:
            raise LaunchError(
                f"the driver cannot listen on {address}:{port} ({error}), where the ranks' tasks report; "
                f"free the port, or give spark.driver.bindAddress an address of this machine"
            ) from error
        self.port: int = listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(listener,), name="lakelens-channel", daemon=True)
        self._thread.start()

    def send(self, rank: int, kind: Kind, body: bytes | dict[str, Any] = b"") -> None:
        """Sends a frame to one rank's task, from any thread."""
        self._post(self._deliver, [rank], pack(kind, body))

    def send_all(self, kind: Kind, body: bytes | dict[str, Any] = b"") -> None:
        """Sends a frame to every task."""
        self._post(self._deliver, range(self._size), pack(kind, body))

    def close(self) -> None:
        """Sends the remaining frames, closes every connection and stops listening."""
        self._post(self._stopping.set)
        self._thread.join(timeout=5)

    def _post(self, call: Callable[..., object], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the channel is closed
            self._loop.call_soon_threadsafe(call, *arguments)

    # --- the channel's thread -------------------------------------------------------------------------------------

    def _run(self, listener: socket.socket) -> None:
        try:
            self._loop.run_until_complete(self._serve(listener))
        finally:
            self._loop.close()

    async def _serve(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_server(self._accept, sock=listener, limit=_READ_BYTES)
        await self._stopping.wait()
        self._stop_listening()
        for connection in self._connections.values():
            connection.writer.close()
        # Each ends when its frames are sent and its connection is closed.
        following = asyncio.all_tasks() - {asyncio.current_task()}
        if following:
            _, late = await asyncio.wait(following, timeout=_CLOSE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Follows one connection to its end."""
        connection, rule = _Connection(reader, writer), None
        try:
            if len(self._strangers) < _STRANGERS_AT_ONCE + self._size and self._server.is_serving():
                self._strangers.add(connection)
                await asyncio.wait_for(connection.shake_hands(self._secret), HANDSHAKE_TIMEOUT_S)
                frames = await asyncio.wait_for(connection.read(), HANDSHAKE_TIMEOUT_S)
                while frames:
                    for frame in frames:
                        self._take(connection, frame)
                    frames = await connection.read()
        except LaunchError as error:
            rule = str(error)
        except (OSError, EOFError, asyncio.TimeoutError):
            pass
        finally:
            self._drop(connection, rule)

    def _take(self, connection: _Connection, frame: Frame) -> None:
        if connection.closed:
            return
        if connection.rank is None:
            connection.rank = self._welcome(connection, frame)
        elif frame.kind == Kind.HELLO:
            raise LaunchError("a task introduces itself once")
        if frame.kind == Kind.PUT:
            unpack_pair(frame.body)  # an invalid pair must not reach the other tasks
            self._deliver([rank for rank in self._connections if rank != connection.rank], pack(Kind.PUT, frame.body))
        else:
            self._on_frame(connection.rank, frame)

    def _welcome(self, connection: _Connection, frame: Frame) -> int:
        rank = frame.json().get("rank") if frame.kind == Kind.HELLO else None
        if type(rank) is not int or not 0 <= rank < self._size or rank in self._connections:
            raise LaunchError(f"a task introduced itself as rank {rank!r}")
        self._connections[rank] = connection
        self._strangers.discard(connection)
        if len(self._connections) == self._size:
            self._stop_listening()
        return rank

    def _deliver(self, ranks: Sequence[int], frame: bytes) -> None:
        for rank in ranks:
            connection = self._connections.get(rank)
            if connection is not None:
                connection.send(frame)
                if connection.writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
                    self._drop(connection)

    def _drop(self, connection: _Connection, rule: str | None = None) -> None:
        self._strangers.discard(connection)
        if connection.closed:
            return
        connection.closed = True
        connection.writer.transport.abort()
        if connection.rank is not None:
            del self._connections[connection.rank]
            if not self._stopping.is_set():
                self._on_lost(connection.rank, rule)

    def _stop_listening(self) -> None:
        self._server.close()
        for connection in list(self._strangers):
            self._drop(connection)
