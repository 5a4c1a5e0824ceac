"""The rows of a version as Spark's `collect` gives them, read from its files without a JVM."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lakelens.etl.data_files import open_parquet
from lakelens.etl.snapshot import open_snapshot


def stored_rows(place: str | Path, version: int | str | None = None) -> list[SimpleNamespace]:
    """Reads all rows of a version of the table at a path, with one attribute for each column."""
    snapshot = open_snapshot(place, version)
    rows = []
    for file in range(len(snapshot.files)):
        partitions = {name: column.at(file) for name, column in snapshot.files.partitions.items()}
        with open_parquet(snapshot, file) as parquet:
            rows += [_with_attributes({**row, **partitions}) for row in parquet.read().to_pylist()]
    return rows


def stored_paths(place: str | Path, version: int | str | None = None) -> list[str]:
    """The paths of a version's rows, sorted."""
    return sorted(row.path for row in stored_rows(place, version))


def _with_attributes(value: Any) -> Any:
    if isinstance(value, dict):
        return SimpleNamespace(**{name: _with_attributes(inner) for name, inner in value.items()})
    return [_with_attributes(inner) for inner in value] if isinstance(value, list) else value
