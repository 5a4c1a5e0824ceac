"""What protects the files of a version: pins, and the runs that use it or have used it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from ...errors import LakelensError
from ...ledger import pins
from ...ledger.ledger import Ledger, Use
from ...ledger.store import change, read
from ...ledger.uses import has_ended, is_lost
from ...log.data_files import require_files
from ...log.snapshot import open_snapshot
from ...table import Table
from ...tracking.run_listing import deleted_runs


@dataclass(frozen=True)
class Protection:
    """What keeps `vacuum` off the files of a version."""

    version: int  # Its number
    by: str  # `pin <name>` or `run <id>`
    since: datetime  # When the pin was set, or the run began


def protections(table: Table) -> list[Protection]:
    """Lists what protects which version since when: by version, pins first."""
    ledger = without_lost_uses(table)
    found = [Protection(one.version, f"pin {one.name}", one.since) for one in ledger.pins]
    found += [Protection(one.version, f"run {one.run_id}", one.since) for one in ledger.uses]
    return sorted(found, key=lambda one: (one.version, one.by))


def without_lost_uses(table: Table) -> Ledger:
    """Returns the ledger without the uses that protect nothing any more, and removes them there if it can be written.

    These are the uses of processes that died in a run without MLflow, and of runs that MLflow has deleted.
    """
    ledger = read(table)
    deleted = _of_deleted_runs(ledger.uses)

    def is_over(use: Use) -> bool:
        return is_lost(use) or (use.run_id in deleted and has_ended(use))

    kept = ledger.without_uses(is_over)
    if kept != ledger:
        with contextlib.suppress(LakelensError):  # who may not write here reads the others' uses all the same
            return change(table, lambda now: now.without_uses(is_over))
    return kept


def _of_deleted_runs(uses: Collection[Use]) -> set[str]:
    """Returns the runs that MLflow has deleted; those at work are not asked about."""
    runs: dict[str, set[str]] = {}
    for use in uses:
        if use.tracking_uri is not None and has_ended(use):
            runs.setdefault(use.tracking_uri, set()).add(use.run_id)
    return {run for uri, ids in runs.items() for run in deleted_runs(uri, ids)}


def pin_version(table: Table, name: str, *, replace: bool = False) -> int:
    """Names a version, which protects its files; returns its number.

    Waits while a VACUUM of lakelens is at work that may remove the version's files.
    """
    pins.check_pin_name(name)
    snapshot = open_snapshot(table)
    pins.set_pin(table, name, snapshot.version, lambda: require_files(snapshot), replace=replace)
    return snapshot.version
