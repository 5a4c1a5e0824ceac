"""What a version holds by class, counted from its small columns, without a JVM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ...log.data_files import read_columns
from ...log.snapshot import Snapshot
from ..model import schema
from ..model.labels import NO_CLASS, in_order, labels_of


def class_counts(snapshot: Snapshot) -> dict[str, int]:
    """Counts a version's rows by class name.

    Classes that have a number come first, in its order, with 0 where they have no row; then, by name, those that have
    none, as in a table that lakelens did not make; then `(no class)`. Empty for a table without classes.

    Raises:
        VersionFilesMissingError: If a data file is gone.
    """
    import pyarrow as pa

    column = class_column(snapshot.schema)
    if column is None:
        return {}
    total: Counter[str] = Counter()
    for file in range(len(snapshot.files)):
        names = read_columns(snapshot, file, pa.schema([(column, pa.string())])).column(column)
        for entry in names.value_counts().to_pylist():
            total[entry["values"] or NO_CLASS] += entry["counts"]
    return in_order(total, labels_of(snapshot.configuration))


def class_column(columns: Mapping[str, str]) -> str | None:
    """Names the column that holds the classes: names when the table has them, else numbers, else None."""
    return next((name for name in (schema.LABEL_NAME, schema.LABEL) if name in columns), None)
