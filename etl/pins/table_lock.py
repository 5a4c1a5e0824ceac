"""Who may name, read or restore versions of a table, or remove files: a readers-writer lock.

On disks it is the kernel's. In an object store no kernel lets go of a dead process's lock, and some file systems have
no locks (Lustre without `flock`, NFS without its lock service) or do not open the file for them (Databricks' volumes).
There each process that wants the lock writes a marker, lists the others' and has the lock once no marker is in its way;
what makes that safe is that a store lists an object as soon as it is written, as S3, Google and Azure do. Of two that
meet, the one whose marker sorts later withdraws: VACUUMs last, so that a pin is made before files are chosen. A marker
is renewed as long as its process lives; one that stays the same for `DEAD_S` seconds of the observer's own clock is of
a dead process and is removed.
"""

from __future__ import annotations

import contextlib
import errno
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
from typing import Any, Literal

from ...errors import TableConflictError
from ...stores.data_files import local_form, names_in, read_bytes, remove_file, write_bytes

logger = logging.getLogger(__name__)

DEAD_S = 60.0
_RENEW_S = 10.0
_POLL_S = 0.5
Purpose = Literal["pin", "read", "vacuum"]
_PURPOSES = ("pin", "read", "vacuum")  # in the order in which they go first, which is that of their markers' names
# What file systems answer that have no locks; others are faults.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ESPIPE}


@contextlib.contextmanager
def table_lock(
    folder: str, purpose: Purpose, storage_options: Mapping[str, str] | None = None
) -> Iterator[Callable[[], None]]:
    """Holds the lock of a table; waits for those who hold it.

    Args:
        folder: Folder beside the table's data, path or URI, in which the lock lies.
        purpose: `read` shares the lock with others who read; `pin` gives a version a name and `vacuum` removes files,
            each of them alone.
        storage_options: Access to an object store.

    Yields:
        A function that raises `TableConflictError` when the lock was lost, because the store could not be reached for
        so long that others took this process for dead; to be asked before each removal.
    """
    local = local_form(folder)
    with contextlib.ExitStack() as holding:
        if local is not None and _locked_by_kernel(Path(local), purpose, holding):
            yield _keep
            return
        marker = _Marker(f"{folder}/locks", purpose, storage_options)
        holding.enter_context(marker.held())
        yield marker.require


def _keep() -> None:
    """The kernel takes a lock from nobody."""


def _locked_by_kernel(folder: Path, purpose: Purpose, holding: contextlib.ExitStack) -> bool:
    """Takes the kernel's lock until `holding` ends; returns False where the file system has none."""
    folder.mkdir(exist_ok=True)
    try:
        # Readable too: NFS gives a shared lock only on a file that is.
        file = holding.enter_context((folder / "lock").open("a+"))
        fcntl.flock(file, fcntl.LOCK_SH if purpose == "read" else fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        logger.warning(
            "%s: the file system has no locks (%s), so marker files in %s/locks are used; machines that do have locks "
            "on it do not see these. Mount it with locks (Lustre: flock; NFS: its lock service) on all or on none",
            folder,
            error.strerror,
            folder,
        )
        (folder / "locks").mkdir(exist_ok=True)
        return False
    return True


class _Marker:
    """This process's marker among those of the others."""

    def __init__(self, folder: str, purpose: Purpose, storage_options: Mapping[str, str] | None) -> None:
        self._folder = folder
        self._options = storage_options
        self._purpose = purpose
        self._name = ""
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
        was_reported = False
        self._announce()
        while (blocking := self._blocking(seen)) or self._is_stale():
            if blocking and not was_reported:
                logger.warning("waiting for %s, which holds the lock in %s", seen.holder(blocking[0]), self._folder)
                was_reported = True
            if self._is_stale() or blocking[0] < self._name:
                self._withdraw()
                while self._blocking(seen):
                    time.sleep(_POLL_S)
                self._announce()
            else:
                time.sleep(_POLL_S)
                self._write()

    def _blocking(self, seen: _Others) -> list[str]:
        """The markers of living processes that are in the way, in their order."""
        harmless = "read" if self._purpose == "read" else None
        names = sorted(names_in(self._folder, self._options) - {self._name})
        blocking = []
        for name in names:
            if name.partition("-")[0] not in _PURPOSES or name.partition("-")[0] == harmless:
                continue
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

    def _announce(self) -> None:
        # A name of its own each time: who took the last marker for dead may still be removing it.
        self._name = f"{self._purpose}-{uuid.uuid4().hex}.json"
        self._renewed, self._lost = time.monotonic(), False
        self._write()

    def _write(self) -> None:
        started = time.monotonic()
        self._beats += 1
        record = json.dumps({**self._who, "beat": self._beats})
        write_bytes(f"{self._folder}/{self._name}", record.encode(), self._options)
        # From the start of the last write that others have seen to the end of this one they may have seen no change.
        self._is_stale()
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
