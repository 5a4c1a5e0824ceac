"""Tables that someone else defined: each is read as Spark reads it, or refused by the name of its feature."""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_tables import CASES, ForeignTable, build_all, write

from lakelens import DeltaFeed, ImageTable, materialize
from lakelens.errors import CopyError, UnsupportedTableFeatureError
from lakelens.etl.log.snapshot import VersionIdentity, identify
from lakelens.log.data_files import read_batches
from lakelens.table import Table
from lakelens.training.configuration.experiment import Data, ExperimentConfig, SearcherConfig
from lakelens.training.experiment.dry_run import plan_of
from lakelens.training.experiment.trial_data import TrialData
from lakelens.training.feed.copies import copies, find_copy, remove_copy

# The first test waits for all tables to be built.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

REFUSED = {
    "deletion_vectors_and_mapping": "deletion vectors",
    "deletion_vectors": "deletion vectors",
    "column_mapping_by_name": r"column mapping \(mode name\)",
    "column_mapping_by_id": r"column mapping \(mode id\)",
    "type_widening": "the table feature typeWidening",
}
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
        value = value.item() if value.dtype.kind != "M" else value.astype("datetime64[us]").astype(str)
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


@pytest.mark.parametrize("name", [name for name in CASES if name not in REFUSED])
def test_a_table_of_another_writer_is_read_as_spark_reads_it(tables, name):
    table = tables[name]
    for version, rows in table.rows.items():
        assert rows
        assert comparable(read(table.location, version)) == comparable(rows)


@pytest.mark.parametrize("name", [name for name in CASES if name != "type_widening"])
def test_a_snapshot_has_the_rows_that_spark_reads(tables, name):
    table = tables[name]
    for version, rows in table.rows.items():
        snapshot = Table.of(table.location, version).snapshot()
        assert snapshot.rows in (None, len(rows))
        found = []
        for file in range(len(snapshot.files)):
            partition = snapshot.files.partition_values(file)
            columns = [name for name in snapshot.schema if name not in partition]
            for batch in read_batches(snapshot, file, columns, batch_rows=3):
                found += [{**partition, **row} for row in batch.to_pylist()]
        if name == "partitions":  # whose values the log holds as text
            found, rows = ([{"id": row["id"]} for row in them] for them in (found, rows))
        elif name == "generated_columns":
            found = [{**row, "half": int(row["half"])} for row in found]
        # A file lacks the fields that a nested column got later.
        names = {name for row in rows for name in row} - ({"s", "l"} if name == "schema_that_grew" else set())
        rows = [{name: row[name] for name in names} for row in rows]
        found = [{name: row.get(name) for name in names} for row in found]
        assert comparable(found) == comparable(rows)


def test_the_classes_of_the_rows_that_are_not_deleted_are_counted(tables):
    table = tables["deletion_vectors"]
    counts = ImageTable(None, table.location).class_counts()
    assert {name: rows for name, rows in counts.items() if rows} == Counter(
        str(row["label"]) for row in table.rows[None]
    )


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_plain_parquet_would_get_wrong_is_refused_by_name(tables, name):
    with pytest.raises(UnsupportedTableFeatureError, match=REFUSED[name]):
        read(tables[name].location)


def through_a_copy(location: Path, folder: Path) -> DeltaFeed:
    return DeltaFeed(location, image_column=None, label_column=None, materialize=folder)


def leave_cut_short(folder: Path, identity: VersionIdentity) -> Path:
    """Leaves what a writer of a copy leaves that was killed long ago."""
    left = folder / identity.table_id / f"{identity.version}-cut"
    (left / "_delta_log").mkdir(parents=True)
    (left / "part-0.parquet").write_bytes(b"PAR1")
    os.utime(left, (0, 0))
    return left


@pytest.fixture(scope="module")
def folder(tables, tmp_path_factory) -> Path:
    """Where copies are kept, with what a killed writer of one left there."""
    folder = tmp_path_factory.mktemp("copies of 100%")
    leave_cut_short(folder, identify(tables["type_widening"].location))
    return folder


def test_a_copy_is_made_once_though_two_ask_at_once_and_has_the_rows_of_the_version(spark, tables, folder):
    table = tables["deletion_vectors"]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: materialize(spark, table.location, None, folder), range(2))
    assert first == second
    assert [copy.location for copy in copies(folder)] == [first.location]
    assert len(list(Path(first.location).parent.iterdir())) == 1
    feed = through_a_copy(table.location, folder)
    assert (feed.location, feed.version, feed.plan.copy) == (str(table.location), 1, first.location)
    assert feed.class_names == ["cat", "dog"]
    assert comparable(read_feed(feed)) == comparable(table.rows[None])


@pytest.mark.parametrize("name", [name for name in REFUSED if "deletion_vectors" not in name])
def test_what_is_refused_is_read_from_a_copy_that_the_active_session_makes(spark, tables, folder, name):
    table = tables[name]
    feed = through_a_copy(table.location, folder)
    assert feed.plan.copy is not None
    assert comparable(read_feed(feed)) == comparable(table.rows[None])
    assert through_a_copy(table.location, folder).plan.copy == feed.plan.copy


def test_a_training_opens_its_session_for_a_copy_and_only_to_make_it(spark, tmp_path):
    rows = "SELECT CAST('x' AS BINARY) AS image, CAST(id AS INT) AS label FROM range(6)"
    write(spark, str(tmp_path / "t"), rows, delta__columnMapping__mode="name")
    keys = {"table": str(tmp_path / "t"), "train_split": None, "validation_split": None, "image_size": 8}
    data = Data(**keys, class_names=list("abcdef"), materialize=str(tmp_path / "copies"))
    opened = []

    def open_session():
        opened.append(spark)
        type(spark)._instantiatedSession = spark
        return spark

    # As in a process that has no session yet.
    type(spark)._instantiatedSession = None
    spark._jvm.SparkSession.clearActiveSession()
    try:
        with pytest.raises(UnsupportedTableFeatureError, match=r"no Spark session that could make one: .* --master"):
            TrialData.open(data, 0)
        config = ExperimentConfig(data=data, searcher=SearcherConfig(metric="loss"))
        with pytest.raises(UnsupportedTableFeatureError, match="the training makes one, a dry run does not"):
            plan_of(config, open_session)
        assert opened == []
        assert TrialData.open(data, 0, spark=open_session).training.rows == 6
        assert TrialData.open(data, 0, spark=open_session).training.rows == 6
    finally:
        type(spark)._instantiatedSession = spark
        spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)
    assert opened == [spark]
    assert plan_of(config)["rows"] == {"all": 6}


def test_copies_stay_within_their_limit_and_can_be_removed(spark, tables, folder):
    table = tables["deletion_vectors"].location
    copy = materialize(spark, table, None, folder)
    with pytest.raises(CopyError, match=r"more than max_bytes=100\. Remove copies"):
        materialize(spark, table, 0, folder, max_bytes=100)
    remove_copy(copy)
    assert not Path(copy.location).exists()
    assert copy not in copies(folder)
    assert find_copy(identify(table), folder) is None


def test_what_a_killed_writer_left_is_no_copy_and_goes_in_time(spark, tables, folder, tmp_path):
    identity = identify(tables["type_widening"].location)
    left = leave_cut_short(tmp_path, identity)
    assert find_copy(identity, tmp_path) is None
    assert left.exists()
    made = materialize(spark, identity.location, identity.version, folder)
    assert [str(entry) for entry in (folder / identity.table_id).iterdir()] == [made.location]


@pytest.mark.parametrize("name", ["column_mapping_by_name", "column_mapping_by_id"])
def test_versions_of_mapped_tables_are_listed_and_counted(tables, name):
    table = ImageTable(None, tables[name].location)
    assert [entry.rows for entry in table.history()] == [3] * (table.version + 1)
    assert table.class_counts() == table.class_counts(0) == {"0": 1, "1": 1, "2": 1}
