"""Keeps a VACUUM and those who begin to need a version apart.

A VACUUM writes first which versions it keeps. A pin or use of another version waits until it has ended. A VACUUM whose
process died is removed: at once on the same machine, else once its beat has stood still for a minute of the
observer's own clock. Clocks of two machines are never compared.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import LakelensError, TableConflictError
from ..liveness import Process
from .ledger import Ledger, Vacuum
from .store import change

if TYPE_CHECKING:
    from ..table import Table

logger = logging.getLogger(__name__)

DEAD_S = 60.0
MOST_WAIT_S = 600.0
_RENEW_S = 10.0
_POLL_S = 0.5


class _AtWork(Exception):
    """A VACUUM is in the way of a change."""


def change_apart(table: Table, in_the_way: Callable[[Ledger], bool], update: Callable[[Ledger], Ledger]) -> Ledger:
    """Changes the ledger once no living VACUUM is in the way."""
    beats: dict[str, tuple[int, float]] = {}  # by mark: the last beat that was seen, and since when
    started = time.monotonic()
    was_reported = False

    def guarded(ledger: Ledger) -> Ledger:
        vacuum = ledger.vacuum
        if vacuum is not None and in_the_way(ledger):
            now = time.monotonic()
            if beats.get(vacuum.mark, (None, now))[0] != vacuum.beat:
                beats[vacuum.mark] = vacuum.beat, now
            running = vacuum.process.is_running()
            # A lease that could not be released has a running process, too, and no beat.
            if running is not False and now - beats[vacuum.mark][1] < DEAD_S:
                raise _AtWork(f"a VACUUM of {vacuum.process}")
            logger.warning("%s: the VACUUM of %s has died and is forgotten", table.path, vacuum.process)
            ledger = replace(ledger, vacuum=None)
        return update(ledger)

    while True:
        try:
            return change(table, guarded)
        except _AtWork as vacuum:
            if time.monotonic() - started > MOST_WAIT_S:
                raise TableConflictError(
                    f"{table.path}: {vacuum} is still at work; try again when it is done"
                ) from None
            if not was_reported:
                logger.warning("%s: waiting for %s", table.path, vacuum)
                was_reported = True
        time.sleep(_POLL_S)


@contextlib.contextmanager
def vacuuming(table: Table, latest: int) -> Iterator[tuple[Ledger, Callable[[], None]]]:
    """Writes that a VACUUM is at work, which keeps the versions that are protected now."""
    mark, process = uuid.uuid4().hex, Process.this()
    ledger = change_apart(
        table,
        lambda _: True,
        lambda ledger: replace(ledger, vacuum=Vacuum(mark, tuple(ledger.protected()), latest, 0, process)),
    )
    renewed = time.monotonic()

    def renewal(ledger: Ledger) -> Ledger:
        if ledger.vacuum is None or ledger.vacuum.mark != mark:
            raise TableConflictError(
                f"{table.path}: this VACUUM gave no sign of life for so long that another process took it for dead; it "
                "removes nothing more. Start it again"
            )
        return replace(ledger, vacuum=replace(ledger.vacuum, beat=ledger.vacuum.beat + 1))

    def require() -> None:
        nonlocal renewed
        if time.monotonic() - renewed >= _RENEW_S:
            change(table, renewal)
            renewed = time.monotonic()

    try:
        yield ledger, require
    finally:
        try:
            change(table, lambda now: replace(now, vacuum=None) if now.vacuum and now.vacuum.mark == mark else now)
        except LakelensError as error:  # what it did is done, or has its own error
            logger.warning("%s: the lease of this VACUUM stays for a minute: %s", table.path, error)
