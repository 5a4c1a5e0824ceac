"""How two versions differ, for a profile: rows that came and went, and what each class lost or gained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from ..log.snapshot import Snapshot, open_snapshot
from ..model.labels import NO_CLASS
from ..versions.changes import diff
from ..versions.classes import class_counts
from .data import ClassRows, Comparison


def compare_with(
    snapshot: Snapshot,
    other: int | str | datetime,
    classes: Sequence[ClassRows],
    storage_options: Mapping[str, str] | None = None,
) -> Comparison:
    """Compares a version with another one, which counts as the one before.

    Args:
        snapshot: The version.
        other: Number, time or pin of the other one.
        classes: The classes of the version, with their rows.
        storage_options: Access to an object store.

    Raises:
        VersionNotFoundError: If the table has no such version.
        VersionFilesMissingError: If data files that have to be read are gone.
        NotAnImageTableError: If the table lacks a column that rows are compared by.
    """
    before = open_snapshot(snapshot.location, other, storage_options)
    changed = diff(snapshot.location, before.version, snapshot.version, storage_options)
    counts = class_counts(before, storage_options)
    after = {entry.name or NO_CLASS: entry.total for entry in classes}
    names = [*after, *(name for name in counts if name not in after)]
    return Comparison(
        version=before.version,
        timestamp=before.timestamp,
        rows=sum(counts.values()),
        classes={name: (counts.get(name, 0), after.get(name, 0)) for name in names},
        added=sum(changed.added.values()),
        removed=sum(changed.removed.values()),
        content=sum(changed.content.values()),
        label=sum(changed.label.values()),
        split=sum(changed.split.values()),
    )
