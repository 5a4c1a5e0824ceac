"""Who may pin versions of a table or remove files: a readers-writer lock, of the kernel on disks, of markers in stores.

In an object store no kernel lets go of a dead process's lock. There each process that wants the lock writes a marker,
lists the others' and has the lock once no marker is in its way; what makes that safe is that a store lists an object as
soon as it is written, as S3, Google and Azure do. Of two that meet, the one whose marker sorts later withdraws: pins
before VACUUMs, so that a pin is made before files are chosen. A marker is renewed as long as its process lives; one
that stays the same for `DEAD_S` seconds of the observer's own clock is of a dead process and is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import TableConflictError
from ..stores import local_form, names_in, read_bytes, remove_file, write_bytes

logger = logging.getLogger(__name__)

DEAD_S = 60.0
_RENEW_S = 10.0
_POLL_S = 0.5
_SHARED, _EXCLUSIVE = "pin", "vacuum"  # in the order in which they go first


@contextlib.contextmanager
def table_lock(
    folder: str, storage_options: Mapping[str, str] | None = None, *, exclusive: bool
) -> Iterator[Callable[[], None]]:
    """Holds the lock of a table; waits for those who hold it.

    Args:
        folder: Folder beside the table's data, path or URI, in which the lock lies.
        storage_options: Access to an object store.
        exclusive: Alone, as a VACUUM needs it, instead of together with others who pin.

    Yields:
        A function that raises `TableConflictError` when the lock was lost, because the store could not be reached for
        so long that others took this process for dead; to be asked before each removal.
    """
    local = local_form(folder)
    if local is not None:
        with _kernel_lock(Path(local), exclusive=exclusive):
            yield _keep
        return
    marker = _Marker(f"{folder}/locks", storage_options, exclusive=exclusive)
    with marker.held():
        yield marker.require


def _keep() -> None:
    """The kernel takes a lock from nobody."""


@contextlib.contextmanager
def _kernel_lock(folder: Path, *, exclusive: bool) -> Iterator[None]:
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("a") as file:
        with contextlib.suppress(OSError):  # some file systems have no locks
            fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield


class _Marker:
    """This process's marker among those of the others."""

    def __init__(self, folder: str, storage_options: Mapping[str, str] | None, *, exclusive: bool) -> None:
        self._folder = folder
        self._options = storage_options
        self._exclusive = exclusive
        self._name = f"{_EXCLUSIVE if exclusive else _SHARED}-{uuid.uuid4().hex}.json"
        self._who = {"host": socket.gethostname(), "pid": os.getpid()}
        self._beats = 0
        self._renewed = 0.0
        self._lost = False
        self._over = threading.Event()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Acquires the lock, and gives it back."""
        renewing = threading.Thread(target=self._renew, name="lakelens-table-lock", daemon=True)
        try:
            self._acquire()
            renewing.start()
            yield
        finally:
            self._over.set()
            if renewing.is_alive():
                renewing.join()
            try:
                self._withdraw()
            except Exception as error:  # noqa: BLE001  what the lock was for is done, or has its own error
                logger.warning("the lock %s/%s stays for a minute: %s", self._folder, self._name, error)

    def require(self) -> None:
        """Raises if others may have taken the lock."""
        if self._is_stale():
            raise TableConflictError(
                f"the lock in {self._folder} could not be renewed for {DEAD_S - _RENEW_S:.0f} s, so that another "
                "process may hold it now; nothing more is done. Once the store answers again, start anew"
            )

    def _acquire(self) -> None:
        seen = _Others()
        said = False
        self._write()
        while blocking := self._blocking(seen):
            if not said:
                logger.warning("waiting for %s, which holds the lock in %s", seen.holder(blocking[0]), self._folder)
                said = True
            if blocking[0] < self._name:
                self._withdraw()
                while self._blocking(seen):
                    time.sleep(_POLL_S)
            else:
                time.sleep(_POLL_S)
            self._write()

    def _blocking(self, seen: _Others) -> list[str]:
        """The markers of living processes that are in the way, in their order."""
        names = names_in(self._folder, self._options) - {self._name}
        if not self._exclusive:
            names = {name for name in names if name.startswith(_EXCLUSIVE)}
        blocking = []
        for name in sorted(names):
            with contextlib.suppress(FileNotFoundError):  # withdrawn between listing and reading
                if seen.is_alive(name, read_bytes(f"{self._folder}/{name}", self._options)):
                    blocking.append(name)
                else:
                    logger.warning("removing the lock of %s in %s: it is dead", seen.holder(name), self._folder)
                    remove_file(f"{self._folder}/{name}", self._options)
        return blocking

    def _is_stale(self) -> bool:
        # For good: another may have had the lock since, and have seen pins and files as they are no longer.
        self._lost = self._lost or time.monotonic() - self._renewed >= DEAD_S - _RENEW_S
        return self._lost

    def _renew(self) -> None:
        while not self._over.wait(_RENEW_S) and not self._is_stale():
            with contextlib.suppress(Exception):  # each store's client has exceptions of its own; `require` tells
                self._write()

    def _write(self) -> None:
        started = time.monotonic()
        self._beats += 1
        record = json.dumps({**self._who, "beat": self._beats})
        write_bytes(f"{self._folder}/{self._name}", record.encode(), self._options)
        self._renewed = started

    def _withdraw(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            remove_file(f"{self._folder}/{self._name}", self._options)


class _Others:
    """What was seen of other processes' markers, and when it changed last."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[bytes, float]] = {}

    def is_alive(self, name: str, content: bytes) -> bool:
        now = time.monotonic()
        if name not in self._seen or self._seen[name][0] != content:
            self._seen[name] = (content, now)
        return now - self._seen[name][1] < DEAD_S

    def holder(self, name: str) -> str:
        record: dict[str, Any] = {}
        with contextlib.suppress(ValueError):
            record = json.loads(self._seen[name][0])
        return f"{name.partition('-')[0]} of process {record.get('pid', '?')} on {record.get('host', '?')}"
