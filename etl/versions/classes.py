"""What a version holds by class, counted from its small columns, without a JVM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..log.data_files import open_parquet
from ..log.snapshot import Snapshot
from ..model import schema
from ..model.labels import NO_CLASS, in_order, labels_of

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_BATCH_ROWS = 65_536


def class_counts(snapshot: Snapshot, storage_options: Mapping[str, str] | None = None) -> dict[str, int]:
    """Counts a version's rows by class name.

    Classes that have a number come first, in its order, with 0 where they have no row; then, by name, those that have
    none, as in a table that lakelens did not make; then `(no class)`. Empty for a table without classes.

    Raises:
        VersionFilesMissingError: If a data file is gone.
    """
    column = class_column(snapshot.schema)
    if column is None:
        return {}
    total: Counter[str] = Counter()
    stored = snapshot.stored_names.get(column, column)
    for file in range(len(snapshot.files)):
        partitions = snapshot.files.partition_values(file)
        with open_parquet(snapshot, file, storage_options) as parquet:
            total.update(count_rows(parquet, column if column in partitions else stored, partitions))
    return in_order(total, labels_of(snapshot.configuration))


def class_column(columns: Mapping[str, str]) -> str | None:
    """Names the column that holds the classes: names when the table has them, else numbers, else None."""
    return next((name for name in (schema.LABEL_NAME, schema.LABEL) if name in columns), None)


def count_rows(parquet: pq.ParquetFile, column: str | None, partitions: Mapping[str, str | None]) -> Counter[str]:
    """Counts the rows of one open data file by class; all are `(no class)` where it has no such column.

    Args:
        parquet: The file.
        column: The column that holds the classes, if any.
        partitions: The file's partition values.
    """
    rows = int(parquet.metadata.num_rows)
    if column is not None and column in partitions:
        return Counter({partitions[column] or NO_CLASS: rows})
    if column not in parquet.schema_arrow.names:
        return Counter({NO_CLASS: rows})
    counts: Counter[str] = Counter()
    for batch in parquet.iter_batches(_BATCH_ROWS, columns=[column]):
        for entry in batch.column(0).value_counts().to_pylist():
            name = entry["values"]
            counts[NO_CLASS if name in (None, "") else str(name)] += entry["counts"]
    return counts
