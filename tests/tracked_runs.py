"""Which runs protect which version."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

from lakelens.etl.versions.vacuum import without_lost_uses
from lakelens.ledger.ledger import Use
from lakelens.ledger.store import change
from lakelens.table import Table


def track(location: str | Path, version: int, run_id: str, since: datetime | None = None) -> None:
    """Notes that a run has used a version, as one that has ended."""
    now = datetime.now(timezone.utc)
    change(Table.of(location), lambda ledger: ledger.with_use(Use(run_id, version, since or now, now)))


def tracked(location: str | Path, storage_options: Mapping[str, str] | None = None) -> dict[int, list[str]]:
    """The ids of runs by the version that they protect, in sorted order."""
    runs: dict[int, list[str]] = {}
    for use in without_lost_uses(Table.of(location, None, storage_options)).uses:
        runs.setdefault(use.version, []).append(use.run_id)
    return {version: sorted(names) for version, names in sorted(runs.items())}
