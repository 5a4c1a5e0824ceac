"""Protects the connection between the driver and a task: proofs of a secret, and a signature on every frame.

Both sides prove with HMAC-SHA256 that they hold the job's secret, which Spark sends with the task. Every frame then has
an HMAC with the connection's key over its direction and number, so that frames cannot be forged, repeated or reordered.
Bodies are not encrypted: they are addresses, log lines and large values.
"""

from __future__ import annotations

import hmac
import struct

from ....errors import LaunchError
from ...rank.frames import FrameReader

NONCE_BYTES = 32
MAC_BYTES = 32


def prove(secret: bytes, side: bytes, theirs: bytes, ours: bytes) -> bytes:
    """Makes the proof of one side, `task` or `driver`, from the other side's nonce and its own."""
    return _mac(secret, side, theirs, ours)


def session_key(secret: bytes, drivers_nonce: bytes, tasks_nonce: bytes) -> bytes:
    """Makes the key of one connection."""
    return _mac(secret, b"session", drivers_nonce, tasks_nonce)


def _mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"".join(struct.pack(">I", len(part)) + part for part in parts), "sha256")


class Seal:
    """Signs the frames of one direction of one connection."""

    def __init__(self, key: bytes, direction: bytes) -> None:
        self._key = _mac(key, b"direction", direction)
        self._number = 0

    def mac(self, data: bytes) -> bytes:
        """Returns the HMAC of the next frame."""
        self._number += 1
        return _mac(self._key, struct.pack(">Q", self._number), data)


class SealedReader(FrameReader):
    """Divides a stream into frames and checks the HMAC of each."""

    trailer_bytes = MAC_BYTES

    def __init__(self, seal: Seal) -> None:
        super().__init__()
        self._seal = seal

    def _check(self, frame: bytes, trailer: bytes) -> None:
        if not hmac.compare_digest(trailer, self._seal.mac(frame)):
            raise LaunchError("a frame's HMAC is wrong; the connection is closed")
