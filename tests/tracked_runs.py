"""Which runs protect which version."""

from __future__ import annotations

from collections.abc import Mapping

from lakelens.etl.pins import pins


def tracked(location: str, storage_options: Mapping[str, str] | None = None) -> dict[int, list[str]]:
    """The ids of runs by the version that they protect, in sorted order."""
    runs: dict[int, list[str]] = {}
    for note in pins.tracked_notes(location, storage_options):
        runs.setdefault(note.version, []).append(note.name)
    return {version: sorted(names) for version, names in runs.items()}
