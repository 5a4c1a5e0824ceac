"""Frames: the protocol between ranks, their supervisors and the driver.

A frame is one byte of kind, four bytes of length (big endian) and a body of bytes. Bodies are JSON or opaque; frames
are never unpickled. Over a network each frame also carries an HMAC of a session key (`sealed_frames`).
"""

from __future__ import annotations

import json
import signal
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

from ...errors import LaunchError

# Log lines and rendezvous values are the largest bodies; 8 KiB and 150 KiB (1,000 ranks) respectively.
MAX_BODY_BYTES = 1 << 20
# Limit of a question, answer or message; the other fields must fit into its frame too.
MAX_SAID_BYTES = 512 << 10
HEADER = struct.Struct(">BI")
_KEY_LENGTH = struct.Struct(">H")
# A rank answers this signal by writing the stacks of its Python threads.
STACK_SIGNAL = signal.SIGUSR2


class Kind(IntEnum):
    """Kinds of frames. A rank sends the first group to its supervisor, which forwards them to the driver as EVENT."""

    READY = 1
    JOINING = 2
    JOINED = 3
    MESSAGE = 4
    RETURNED = 5
    RAISED = 6
    PROGRESS = 7
    ASK = 8

    ASSIGN = 20
    """Supervisor to rank, driver to supervisor: the rank's place in the world and its environment."""
    ANSWER = 21
    """The same way: the answer to the ASK of the same number."""
    TELL = 22
    """The same way: a message of the driver to every rank."""

    HELLO = 30
    EVENT = 31
    PUT = 32
    BEAT = 33
    END = 34
    CLOSE_STORE = 35
    VALUE = 36


class Frame(NamedTuple):
    """One message."""

    kind: int
    body: bytes

    def json(self) -> dict[str, Any]:
        """Reads the body as a JSON object."""
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise LaunchError(f"a frame of kind {self.kind} does not hold JSON: {error}") from error
        if not isinstance(value, dict):
            raise LaunchError(f"a frame of kind {self.kind} holds {type(value).__name__}, not an object")
        return value

    def said(self) -> tuple[int, dict[str, Any]]:
        """Reads the number and the object of an ANSWER or TELL."""
        found = self.json()
        number, body = found.get("number"), found.get("body")
        if not isinstance(number, int) or not isinstance(body, dict):
            raise LaunchError(f"a frame of kind {self.kind} lacks its number or its object")
        return number, body


def pack(kind: int, body: bytes | dict[str, Any] = b"") -> bytes:
    """Makes the bytes of one frame."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    if len(raw) > MAX_BODY_BYTES:
        raise LaunchError(f"a message of {len(raw)} bytes is too large; at most {MAX_BODY_BYTES} are sent at once")
    return HEADER.pack(kind, len(raw)) + raw


def said(what: str, body: Any, number: int = 0) -> bytes:
    """Makes the body of an ASK, ANSWER or TELL."""
    if not isinstance(body, dict):
        raise LaunchError(f"{what} is of type {type(body).__name__}; it must be a dict of JSON values")
    try:
        raw = json.dumps({"number": number, "body": body}).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise LaunchError(f"{what} must be a dict of JSON values ({error}); convert the other values") from error
    if len(raw) > MAX_SAID_BYTES:
        raise LaunchError(f"{what} takes {len(raw)} bytes as JSON; at most {MAX_SAID_BYTES} are sent")
    return raw


def pack_pair(key: str, value: bytes) -> bytes:
    """Makes the body of a PUT."""
    raw = key.encode()
    return _KEY_LENGTH.pack(len(raw)) + raw + value


def unpack_pair(body: bytes) -> tuple[str, bytes]:
    """Reads the body of a PUT."""
    start = _KEY_LENGTH.size
    length = _KEY_LENGTH.unpack_from(body)[0] if len(body) >= start else 0
    if len(body) < start + length:
        raise LaunchError(f"a frame of kind {Kind.PUT} ends before its key does, after {len(body)} bytes")
    return body[start : start + length].decode("utf-8", "replace"), body[start + length :]


class FrameReader:
    """Divides a stream of bytes into frames."""

    trailer_bytes = 0
    """Number of bytes that follow each frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Takes bytes and yields the frames that are now complete."""
        self._buffer += data
        while len(self._buffer) >= HEADER.size:
            kind, length = HEADER.unpack_from(self._buffer)
            if length > MAX_BODY_BYTES:
                raise LaunchError(f"a frame announces {length} bytes; at most {MAX_BODY_BYTES} are accepted")
            end = HEADER.size + length
            if len(self._buffer) < end + self.trailer_bytes:
                return
            frame, trailer = bytes(self._buffer[:end]), bytes(self._buffer[end : end + self.trailer_bytes])
            del self._buffer[: end + self.trailer_bytes]
            self._check(frame, trailer)
            yield Frame(kind, frame[HEADER.size :])

    def _check(self, frame: bytes, trailer: bytes) -> None:
        """Checks the bytes that follow a frame."""
