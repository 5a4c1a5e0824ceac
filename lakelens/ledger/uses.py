"""Uses: which runs read or have read a version, which protects its files from VACUUM."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from ..errors import InvalidArgumentError, LakelensError, MissingDependencyError, VersionNotFoundError
from ..liveness import Process
from ..locations import without_password
from .ledger import Ledger, Use
from .store import change
from .vacuum_lease import change_apart

if TYPE_CHECKING:
    from ..table import Table

logger = logging.getLogger(__name__)

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
    """Protects a version while a run reads it and after that.

    If the body raises, the version stays protected only if the run can be resumed. If this process is killed, it stays
    protected by a run of MLflow, which may have a checkpoint. A table that can only be read here is read all the same,
    with a warning.
    """
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
            names = ", ".join(known[:_NAMED]) + (f" and {len(known) - _NAMED} more" if len(known) > _NAMED else "")
            raise VersionNotFoundError(
                f"{table.path}: no version is tracked for run {run_id!r}; its runs: {names or 'none'}"
            )
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
