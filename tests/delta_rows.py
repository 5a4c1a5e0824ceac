"""The rows of a Delta table, read without a JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lakelens.log.data_files import read_batches
from lakelens.log.snapshot import open_snapshot
from lakelens.table import Table


def delta_rows(location: str | Path, version: int | None = None) -> list[dict[str, Any]]:
    """Reads every row of a version; the values of partition columns are texts, as the log has them."""
    snapshot = open_snapshot(Table.of(location, version))
    rows = []
    for file in range(len(snapshot.files)):
        partition = snapshot.files.partition_values(file)
        names = [name for name in snapshot.schema if name not in partition]
        for batch in read_batches(snapshot, file, names):
            rows += [{**partition, **row} for row in batch.to_pylist()]
    return rows
