"""What a version holds by class, counted from its small columns, without a JVM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ...errors import InvalidArgumentError, NotADeltaTableError
from ...ledger.ledger import Ledger
from ...ledger.store import read
from ...log.data_files import read_batches, read_columns
from ...log.snapshot import Snapshot
from ...table import Table
from ..model import schema
from ..model.labels import NO_CLASS, in_order, labels_of


def class_counts(snapshot: Snapshot) -> dict[str, int]:
    """Counts a version's rows by class name.

    First the classes with a number, in its order, with 0 for a class without rows; then, by name, those that have
    none, as in a table that lakelens did not make; then `(no class)`. Empty for a table without classes.
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
    return in_order(total, labels_at(snapshot))


def box_counts(snapshot: Snapshot) -> dict[str, int]:
    """Counts a version's boxes by class name, as `class_counts` counts rows; empty for a table without boxes."""
    if schema.ANNOTATIONS not in snapshot.schema:
        return {}
    total: Counter[str] = Counter()
    for file in range(len(snapshot.files)):
        for batch in read_batches(snapshot, file, [schema.ANNOTATIONS]):
            names = batch.column(0).flatten().field(schema.LABEL_NAME)
            total.update({entry["values"] or NO_CLASS: entry["counts"] for entry in names.value_counts().to_pylist()})
    return in_order(total, labels_at(snapshot)) if total else {}


def labels_at(snapshot: Snapshot) -> dict[str, int]:
    """Returns the class numbers of a version by its names, ordered by number.

    They are in the ledger of a table that lakelens has made. Otherwise a property of the table may state them, or its
    rows carry them, as those of a clone do.
    """
    return stated_labels(snapshot.table, snapshot.version, snapshot.configuration) or _labels_in_rows(snapshot)


def stated_labels(table: Table, version: int, configuration: Mapping[str, str]) -> dict[str, int]:
    """Returns the class numbers that the ledger of a table or its properties give, as of a version."""
    try:
        ledger = read(table)
    except (InvalidArgumentError, NotADeltaTableError):  # a place that can have none, or a name in the catalog
        ledger = Ledger()
    return ledger.labels_at(version) if ledger.classes else labels_of(configuration)


def _labels_in_rows(snapshot: Snapshot) -> dict[str, int]:
    import pyarrow as pa

    if snapshot.schema.get(schema.LABEL_NAME) != "string" or snapshot.schema.get(schema.LABEL) != "integer":
        return {}
    columns = pa.schema([(schema.LABEL_NAME, pa.string()), (schema.LABEL, pa.int32())])
    pairs: Counter[tuple[str, int]] = Counter()
    for file in range(len(snapshot.files)):
        rows = read_columns(snapshot, file, columns)
        pairs.update(zip(*(rows.column(name).to_pylist() for name in columns.names), strict=True))
    return Ledger().settled({pair: rows for pair, rows in pairs.items() if pair[0] and pair[1] is not None})[0].labels


def class_column(columns: Mapping[str, str]) -> str | None:
    """Names the column that holds the classes: names when the table has them, else numbers, else None."""
    return next((name for name in (schema.LABEL_NAME, schema.LABEL) if name in columns), None)
