"""The rows of a version as Spark's `collect` gives them, read from its files without a JVM."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from delta_rows import delta_rows


def stored_rows(place: str | Path, version: int | None = None) -> list[SimpleNamespace]:
    """Reads all rows of a version of the table at a path, with one attribute for each column."""
    return [_with_attributes(row) for row in delta_rows(place, version)]


def stored_paths(place: str | Path, version: int | None = None) -> list[str]:
    """The paths of a version's rows, sorted."""
    return sorted(row.path for row in stored_rows(place, version))


def _with_attributes(value: Any) -> Any:
    if isinstance(value, dict):
        return SimpleNamespace(**{name: _with_attributes(inner) for name, inner in value.items()})
    return [_with_attributes(inner) for inner in value] if isinstance(value, list) else value
