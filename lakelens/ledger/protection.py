"""What protects a version's files: pins, and uses by runs, kept apart from a VACUUM at work by its lease.

A VACUUM writes first which versions it keeps. A pin or use of another version waits until it has ended. A VACUUM whose
process died is removed: at once on the same machine, else once its beat has stood still for a minute of the
observer's own clock. Clocks of two machines are never compared.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from ..errors import (
    InvalidArgumentError,
    LakelensError,
    MissingDependencyError,
    TableConflictError,
    VersionNotFoundError,
)
from ..liveness import Process
from ..locations import without_password
from ..results import some_of
from .ledger import Ledger, Pin, Use, Vacuum
from .store import change, read

if TYPE_CHECKING:
    from ..table import Table

logger = logging.getLogger(__name__)

DEAD_S = 60.0
MOST_WAIT_S = 600.0
_RENEW_LEASE_S = 10.0
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
        if time.monotonic() - renewed >= _RENEW_LEASE_S:
            change(table, renewal)
            renewed = time.monotonic()

    try:
        yield ledger, require
    finally:
        try:
            change(table, lambda now: replace(now, vacuum=None) if now.vacuum and now.vacuum.mark == mark else now)
        except LakelensError as error:  # what it did is done, or has its own error
            logger.warning("%s: the lease of this VACUUM stays for a minute: %s", table.path, error)


_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_.-]{0,99}\Z")
_RESERVED = ("latest",)


def pins(table: Table) -> dict[str, int]:
    """Returns the pinned versions by their names."""
    return {one.name: one.version for one in read(table).pins}


def pinned_version(table: Table, name: str) -> int | None:
    """Returns the version that a pin names; None if the pin does not exist."""
    return read(table).version_of(name) if _NAME.match(name) else None


def set_pin(table: Table, name: str, version: int, require_files: Callable[[], None], *, replace: bool = False) -> None:
    """Names a version; waits for a VACUUM that may remove its files."""
    check_pin_name(name)

    def pinned(ledger: Ledger) -> Ledger:
        known = ledger.version_of(name)
        if known is not None and known != version and not replace:
            raise InvalidArgumentError(
                f"pin {name!r} of {table.path} already names version {known}; unpin it first, or choose another name"
            )
        require_files()
        return ledger.with_pin(Pin(name, version, datetime.now(timezone.utc)))

    change_apart(table, lambda ledger: ledger.blocks(version), pinned)


def unpin(table: Table, name: str) -> None:
    """Removes a pin."""
    check_pin_name(name)

    def unpinned(ledger: Ledger) -> Ledger:
        if ledger.version_of(name) is None:
            names = ", ".join(one.name for one in ledger.pins) or "none"
            raise VersionNotFoundError(f"{table.path} has no pin {name!r}; its pins: {names}")
        return ledger.without_pin(name)

    change(table, unpinned)


def check_pin_name(name: str) -> None:
    """Checks a pin's name."""
    if not isinstance(name, str) or not _NAME.match(name) or name in _RESERVED:
        raise InvalidArgumentError(
            f"{name!r} is not a pin's name: letters, digits, _ . and -, starting with a letter or _, at most 100, "
            "and not 'latest'"
        )


# A process of another machine counts as dead when it has not renewed its use for this time.
_SILENT = timedelta(days=1)
_RENEW_S = 600.0
# Runs that an error names.
_NAMED = 10


def has_ended(use: Use) -> bool:
    """Returns whether nothing reads the version any more: the run has ended, or its process has died."""
    if use.process is None:
        return True
    running = use.process.is_running()
    return not running if running is not None else datetime.now(timezone.utc) - use.renewed > _SILENT


def is_lost(use: Use) -> bool:
    """Returns whether a use protects nothing any more: its process died, and no run of MLflow could be resumed."""
    return use.process is not None and use.tracking_uri is None and has_ended(use)


@contextlib.contextmanager
def using(
    table: Table,
    version: int,
    run_id: str,
    *,
    kept_as: str | None = None,
    tracking_uri: str | None = None,
    resumable: Callable[[], bool] = lambda: False,
    stays: bool = True,
) -> Iterator[Callable[[], None]]:
    """Protects a version while a run reads it and after that; warns if the table can only be read here."""
    # If the body raises, the version stays protected only if the run can be resumed. If this process is killed, it
    # stays protected by a run of MLflow, which may have a checkpoint.
    now = datetime.now(timezone.utc)
    shown = None if tracking_uri is None else without_password(tracking_uri)
    use = Use(run_id, version, now, now, Process.this(), shown)
    is_kept = [False]

    def begun(ledger: Ledger) -> Ledger:
        is_kept[0] = any((one.run_id, one.version, one.process) == (kept_as, version, None) for one in ledger.uses)
        return ledger if is_kept[0] else ledger.without_uses(is_lost).with_use(use)

    try:
        change_apart(table, lambda ledger: ledger.blocks(version), begun)
    except (OSError, MissingDependencyError, InvalidArgumentError) as error:  # the last where the store is not known
        logger.warning(
            "the ledger of %s cannot be written, so VACUUM may remove files of version %d while they are read: %s",
            table.path,
            version,
            error,
        )
        is_kept[0] = True
    if is_kept[0]:
        yield lambda: None
        return
    try:
        yield _renewing(table, use)
    except BaseException:
        with contextlib.suppress(LakelensError):  # the body's error is what matters
            _end(table, use, None, stays=resumable())
        raise
    try:
        _end(table, use, kept_as, stays=stays)
    except LakelensError as error:  # protected until this process ends
        logger.warning(
            "the ledger of %s can no longer be written, so VACUUM may remove files of version %d: %s",
            table.path,
            version,
            error,
        )


@contextlib.contextmanager
def reading(table: Table, version: int, name: str) -> Iterator[None]:
    """Protects a version during the block, and not after it."""
    now = datetime.now(timezone.utc)
    use = Use(name, version, now, now, Process.this())
    change_apart(table, lambda ledger: ledger.blocks(version), lambda ledger: ledger.with_use(use))
    try:
        yield
    finally:
        _end(table, use, None, stays=False)


def untrack(table: Table, run_id: str) -> int:
    """Removes the uses of a run; returns how many versions it used."""
    forgotten = 0

    def untracked(ledger: Ledger) -> Ledger:
        nonlocal forgotten
        forgotten = sum(one.run_id == run_id for one in ledger.uses)
        if not forgotten:
            known = sorted({one.run_id for one in ledger.uses})
            names = some_of(known, _NAMED) or "none"
            raise VersionNotFoundError(f"{table.path}: no version is tracked for run {run_id!r}; its runs: {names}")
        return ledger.without_uses(lambda use: use.run_id == run_id)

    change(table, untracked)
    return forgotten


def untrack_older(table: Table, age: timedelta) -> int:
    """Removes the uses of runs that began longer ago and have ended; returns how many there were."""
    if not isinstance(age, timedelta) or age <= timedelta(0):
        raise InvalidArgumentError(f"older_than = {age!r}: give a timedelta above 0, as in timedelta(days=90)")
    before = datetime.now(timezone.utc) - age
    forgotten = 0

    def untracked(ledger: Ledger) -> Ledger:
        nonlocal forgotten
        kept = ledger.without_uses(lambda use: use.since < before and has_ended(use))
        forgotten = len(ledger.uses) - len(kept.uses)
        return kept

    change(table, untracked)
    return forgotten


def _renewing(table: Table, use: Use) -> Callable[[], None]:
    written = time.monotonic()

    def renew() -> None:
        nonlocal written
        if time.monotonic() - written >= _RENEW_S:
            written = time.monotonic()
            with contextlib.suppress(LakelensError):  # the next call tries again, long before the lease ends
                renewed = replace(use, renewed=datetime.now(timezone.utc))
                change(table, lambda ledger: ledger.with_use(renewed))

    return renew


def _end(table: Table, use: Use, kept_as: str | None, *, stays: bool) -> None:
    ended = replace(use, run_id=kept_as or use.run_id, process=None)

    def without(ledger: Ledger) -> Ledger:
        rest = ledger.without_uses(lambda one: (one.run_id, one.version) == (use.run_id, use.version))
        return rest.with_use(ended) if stays else rest

    change(table, without)
