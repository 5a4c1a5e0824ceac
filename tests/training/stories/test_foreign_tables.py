"""Tables that someone else defined: each is read as Spark reads it, or refused by the name of its feature."""

from __future__ import annotations

from collections import Counter
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_tables import CASES, ForeignTable, build_all

from lakelens import DeltaFeed, ImageTable
from lakelens.log.data_files import read_batches
from lakelens.log.snapshot import open_snapshot
from lakelens.table import Table

# The first test waits for all tables to be built.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

# What stands for null where NumPy has none.
FILL = {
    "letter": "<null>",
    "day": date(1, 1, 2),
    "data": b"<null>",
    "time": datetime(1800, 1, 1, tzinfo=timezone.utc),
    "score": -1.0,
    "flag": False,
    "amount": "<null>",
    "small": 0,
    "share": -1.0,
}


@pytest.fixture(scope="module")
def tables(spark, tmp_path_factory) -> dict[str, ForeignTable]:
    return build_all(spark, tmp_path_factory.mktemp("foreign"))


def read(location: Path | str, version: int | None = None) -> list[dict[str, Any]]:
    """Reads all columns of a table through the feed, three rows a batch."""
    return read_feed(DeltaFeed(location, version, image_column=None, label_column=None))


def read_feed(feed: DeltaFeed) -> list[dict[str, Any]]:
    fill = {name: value for name, value in FILL.items() if name in feed.plan.schema}
    rows = []
    for columns, weights in feed.as_column_numpy(3, fill=fill):
        for i in np.flatnonzero(weights):
            rows.append({name: values[i] for name, values in columns.items()})
    return rows


def comparable(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(
        repr(sorted((name, _plain(FILL.get(name) if v is None else v)) for name, v in row.items())) for row in rows
    )


def _plain(value: Any) -> Any:
    """One form for what Spark, Arrow and NumPy call a value."""
    if isinstance(value, np.generic):
        value = value.item() if value.dtype.kind != "M" else str(value.astype("datetime64[us]"))
    if isinstance(value, datetime):
        value = value.astimezone(timezone.utc).replace(tzinfo=None) if value.tzinfo else value
    if hasattr(value, "isoformat"):
        value = str(np.datetime64(value.isoformat(), "us"))
    if isinstance(value, bytearray):
        value = bytes(value)
    if isinstance(value, dict):
        return [[key, _plain(item)] for key, item in sorted(value.items())]
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return float(np.float32(value)) if isinstance(value, float) else value


@pytest.mark.parametrize("name", CASES)
def test_a_table_of_another_writer_is_read_as_spark_reads_it(tables, name):
    table = tables[name]
    for version, rows in table.rows.items():
        assert rows
        assert open_snapshot(Table.of(table.location, version)).rows in (None, len(rows))
        assert comparable(read(table.location, version)) == comparable(rows)


def test_stored_batches_and_counts_lack_the_rows_that_are_deleted(tables):
    table = tables["deletion_vectors_and_mapping"]
    snapshot = open_snapshot(Table.of(table.location))
    files = range(len(snapshot.files))
    batches = (batch for file in files for batch in read_batches(snapshot, file, ["id"], batch_rows=3))
    found = [number for batch in batches for number in batch.column(0).to_pylist()]
    assert sorted(found) == sorted(row["id"] for row in table.rows[None])
    counts = ImageTable(None, table.location).class_counts()
    assert {name: rows for name, rows in counts.items() if rows} == Counter(
        str(row["label"]) for row in table.rows[None]
    )


def test_versions_of_tables_that_are_mapped_by_id_are_listed_and_counted(tables):
    table = ImageTable(None, tables["column_mapping_by_id"].location)
    assert [entry.rows for entry in table.history()] == [3] * (table.version + 1)
    assert table.class_counts() == table.class_counts(0) == {"0": 1, "1": 1, "2": 1}
