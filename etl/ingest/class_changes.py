"""Finds vanished and renamed classes in the plan of an ingest and in the table before and after it."""

from __future__ import annotations

from collections.abc import Collection

from ..changes.plan import Plan
from .label_changes import Rename, find_renames
from .version_rows import VersionRows


def find_vanished(plan: Plan, stored: VersionRows | None) -> tuple[str, ...]:
    """Finds classes of stored rows that no file of the source has any more, and no row of another source.

    Args:
        plan: The whole plan of the source.
        stored: The table that it was made for, or None if it does not exist yet.
    """
    if stored is None or not plan.lost_classes:
        return ()
    rows = stored.counts(plan.lost_classes)
    return tuple(sorted(name for name, count in rows.items() if count == plan.lost_by_class[name]))


def find_renamed(
    stored: VersionRows, rows: VersionRows, vanished: Collection[str], present: Collection[str]
) -> tuple[Rename, ...]:
    """Finds the new names of classes that have vanished.

    Args:
        stored: The table while it had all rows of those classes.
        rows: The table as it is now.
        vanished: What `find_vanished` has found.
        present: Classes that the source has.
    """
    if not vanished:
        return ()
    return find_renames(stored.sizes(vanished), present, stored.moved(vanished, rows))
