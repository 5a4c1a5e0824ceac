"""Sends rank 0's value to the driver: a small pickle, and separately the large buffers as they are in memory.

Spark returns the pickle as the task's result. Arrays and long byte strings are sent separately as opaque bytes, because
Spark copies a result several times in the heaps of executor and driver, so that a few hundred MB fail there.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import IO, Any

import cloudpickle

from ....errors import LaunchError

# Below this size a separate buffer costs more than it saves.
LARGE_BYTES = 1 << 20


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Sets large buffers aside."""

    def __init__(self, file: IO[bytes]) -> None:
        self.large: list[tuple[str, Any]] = []
        super().__init__(file, protocol=5, buffer_callback=self._keep_in_pickle)

    def _keep_in_pickle(self, buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < LARGE_BYTES:
            return True
        self.large.append(("buffer", raw))
        return False

    def persistent_id(self, value: Any) -> tuple[str, int] | None:
        """Sets aside long byte strings and texts, which pickle would copy."""
        if type(value) in (bytes, bytearray, str) and len(value) >= LARGE_BYTES:
            kind = type(value).__name__
            self.large.append((kind, value.encode("utf-8", "surrogatepass") if kind == "str" else value))
            return kind, len(self.large) - 1
        return None


class _Unpickler(pickle.Unpickler):
    """Puts large buffers back."""

    def __init__(self, file: IO[bytes], large: Sequence[Any], buffers: Sequence[Any]) -> None:
        super().__init__(file, buffers=buffers)
        self._large = large

    def persistent_load(self, key: Any) -> Any:
        """Returns the value that was set aside under `key`."""
        kind, index = key
        value = self._large[index]
        return value.decode("utf-8", "surrogatepass") if kind == "str" else bytes(value) if kind == "bytes" else value


def write_value(value: Any, file: IO[bytes]) -> dict[str, Any]:
    """Writes a value to an empty file: the pickle, then the large buffers.

    Returns `pickle`: bytes of the pickle; `large`: kind and bytes of each buffer, in their order.
    """
    skeleton = io.BytesIO()
    pickler = _Pickler(skeleton)
    pickler.dump(value)
    file.write(skeleton.getbuffer())
    for _, raw in pickler.large:
        file.write(raw)
    return {
        "pickle": skeleton.getbuffer().nbytes,
        "large": [[kind, raw.nbytes if isinstance(raw, memoryview) else len(raw)] for kind, raw in pickler.large],
    }


def read_value(skeleton: bytes, large: Sequence[tuple[str, int]], file: IO[bytes]) -> Any:
    """Restores the value."""
    raws: list[bytearray] = []
    for _, size in large:
        raw = bytearray(size)
        file.readinto(raw)  # type: ignore[attr-defined]
        raws.append(raw)
    buffers = [raw for (kind, _), raw in zip(large, raws, strict=True) if kind == "buffer"]
    try:
        return _Unpickler(io.BytesIO(skeleton), raws, buffers).load()
    except Exception as error:
        raise LaunchError(
            f"rank 0's value cannot be read on the driver ({type(error).__name__}: {error}); return plain values, or "
            f"save the object and return its path"
        ) from error
