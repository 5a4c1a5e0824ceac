"""A folder whose files are written as on a mounted object store, such as a volume of Databricks: from start to end."""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class _Sequential(io.FileIO):
    def write(self, content: Any, /) -> int:
        if self.tell() != os.fstat(self.fileno()).st_size:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return super().write(content)


def make_volume(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuses appends, updates, writes before a file's end and locks below a folder, in this process."""
    real, lock = builtins.open, fcntl.flock

    def is_inside(file: Any) -> bool:
        return isinstance(file, str | os.PathLike) and Path(os.fspath(file)).is_relative_to(folder)

    def opened(file: Any, mode: str = "r", buffering: int = -1, *encoding: Any, **more: Any) -> Any:
        if not is_inside(file) or mode.strip("bt") == "r":
            return real(file, mode, buffering, *encoding, **more)
        if "a" in mode or "+" in mode:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), os.fspath(file))
        buffered = io.BufferedWriter(_Sequential(file, mode.strip("bt")))
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *encoding, **more)

    def locked(file: Any, operation: int) -> None:
        descriptor = file if isinstance(file, int) else file.fileno()
        if is_inside(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        lock(file, operation)

    refusing: Callable[..., Any] = opened
    monkeypatch.setattr(builtins, "open", refusing)
    monkeypatch.setattr(io, "open", refusing)
    monkeypatch.setattr(fcntl, "flock", locked)
