"""The rows of a Delta table, read without a JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lakelens.etl.log.data_files import open_parquet
from lakelens.etl.log.snapshot import open_snapshot


def delta_rows(location: str | Path, version: int | None = None) -> list[dict[str, Any]]:
    """Reads every row of a version; the values of partition columns are texts, as the log has them."""
    snapshot = open_snapshot(location, version)
    rows = []
    for file in range(len(snapshot.files)):
        partition = snapshot.files.partition_values(file)
        with open_parquet(snapshot, file) as parquet:
            rows += [{**partition, **row} for row in parquet.read().to_pylist()]
    return rows
