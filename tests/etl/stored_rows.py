"""What a version holds, read from its files without a JVM."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from delta_rows import delta_rows
from snapshots import open_snapshot


def stored_rows(place: str | Path, version: int | None = None) -> list[SimpleNamespace]:
    """Reads all rows of a version as Spark's `collect` gives them, with one attribute for each column."""
    return [_with_attributes(row) for row in delta_rows(place, version)]


def stored_paths(place: str | Path, version: int | None = None) -> list[str]:
    """The paths of a version's rows, sorted."""
    return sorted(row.path for row in stored_rows(place, version))


def names_and_numbers(place: str | Path, version: int | None = None) -> set[tuple[str, int]]:
    """The names of a version's classes, each with its number."""
    return {(row["label_name"], row["label"]) for row in delta_rows(place, version)}


def files_of(place: str | Path, version: int | None = None) -> list[Path]:
    """Where the data files of a version are."""
    snapshot = open_snapshot(place, version)
    return [Path(snapshot.file_location(i)) for i in range(len(snapshot.files))]


def _with_attributes(value: Any) -> Any:
    if isinstance(value, dict):
        return SimpleNamespace(**{name: _with_attributes(inner) for name, inner in value.items()})
    return [_with_attributes(inner) for inner in value] if isinstance(value, list) else value
