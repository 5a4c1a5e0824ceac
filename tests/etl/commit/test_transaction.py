"""Rules of commits: one batch, one commit, nothing doubled."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from etl_pictures import write_image
from snapshots import open_snapshot
from stored_rows import stored_paths, stored_rows
from version_tables import commit as commit_by_another

from lakelens import ImageTable
from lakelens.errors import TableConflictError
from lakelens.etl.commit.transaction import APPLICATION_ID, Batch, Transaction
from lakelens.etl.spark.writing_session import writing_session
from lakelens.table import Table

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def place(tmp_path):
    """A table of one row, at version 0."""
    append_by_another(tmp_path / "50% t", "first")
    return str(tmp_path / "50% t")


def transaction(spark, place):
    return Transaction(spark, Table(str(place)))


def row(spark, path):
    return spark.sql(f"SELECT '{path}' AS path, 'train' AS split")


def append_by_another(place, *paths):
    """Appends rows in one file, as a writer elsewhere does; makes the table if it is not there."""
    rows = pa.table({"path": pa.array(paths, pa.string()), "split": ["train"] * len(paths)})
    write_deltalake(place, rows, mode="append", partition_by=["split"])


def log_entries(place, kind):
    """The log's entries of one kind, by version."""
    commits = sorted((Path(place) / "_delta_log").glob("*.json"))
    entries = {int(file.stem): [json.loads(line) for line in file.read_text().splitlines()] for file in commits}
    return {version: found[kind] for version, lines in entries.items() for found in lines if kind in found}


def set_by_another(place, properties):
    """Sets properties as a writer elsewhere does, of whom this JVM knows nothing."""
    (*_, metadata) = log_entries(place, "metaData").values()
    note = {"timestamp": int(1000 * time.time()), "operation": "SET TBLPROPERTIES", "operationParameters": {}}
    changed = {**metadata, "configuration": {**metadata["configuration"], **properties}}
    commit_by_another(Path(place), {"commitInfo": note}, {"metaData": changed})


def write_images(folder, numbers):
    for number in numbers:
        write_image(folder / f"{number:04d}.jpg", seed=number)


def attempted(transaction, rows, note):
    """Commits rows; gives None if that is refused."""
    try:
        return transaction.commit(Batch(rows, note))
    except TableConflictError:
        return None


def test_a_commit_replaces_rows_takes_the_next_number_and_is_refused_if_another_was_faster(spark, place):
    session = writing_session(spark)
    early = transaction(spark, place)
    set_by_another(place, {"lakelens.labels": "{}"})
    first, second = (transaction(spark, place) for _ in range(2))
    assert attempted(early, row(spark, "same"), "planned before the properties") is None
    assert attempted(first, row(spark, "same"), "first") == 2
    assert attempted(second, row(spark, "same"), "second") is None
    assert stored_paths(place) == ["first", "same"]
    set_by_another(place, {"team.owner": "someone"})
    third = transaction(session, place)
    assert third.version == 3
    stale = session.range(300).selectExpr(
        "CASE id WHEN 0 THEN 'first' WHEN 1 THEN 'same' ELSE lpad(id, 100, 0) END AS path"
    )
    version = third.commit(Batch(row(session, "new"), "third", stale))
    assert stored_paths(place) == ["new"]
    latest = open_snapshot(place)
    assert (latest.version, latest.configuration["team.owner"]) == (version, "someone")
    numbers = log_entries(place, "txn")
    assert {txn["appId"] for txn in numbers.values()} == {APPLICATION_ID}
    assert {at: txn["version"] for at, txn in numbers.items()} == {2: 0, version: 1}
    log = Path(place) / "_delta_log" / f"{version:020d}.json"
    assert log.stat().st_size < 20_000  # however many paths are replaced


def test_a_file_that_holds_other_rows_too_keeps_these(spark, place):
    session = writing_session(spark)
    append_by_another(place, "file:/data/a b", "file:///data/c", "cat", None)
    untouched, touched = (open_snapshot(place, version).files.paths for version in (0, 1))
    stale = session.sql("SELECT explode(array('file:///data/a%20b', 'cat', 'of no row')) AS path")
    done = transaction(session, place).commit(Batch(row(session, "cat"), "replaced", stale))
    assert done == 2
    found = sorted(str(row.path) for row in stored_rows(place))
    assert found == ["None", "cat", "file:///data/c", "first"]
    left = set(open_snapshot(place).files.paths)
    assert left & set(touched) == set(untouched)
    none = session.sql("SELECT 'of no row' AS path")
    assert transaction(session, place).commit(Batch(row(session, "dog"), "appended", none)) == 3
    nothing = Batch(row(session, "dog").limit(0), "nothing", none)
    assert transaction(session, place).commit(nothing) is None


def test_ingests_at_once_store_each_file_once_keep_no_rows_and_a_new_table_starts_clean(spark, tmp_path):
    cache = spark._jsparkSession.sharedState().cacheManager()
    kept = cache.numCachedEntries()
    results: list[object] = []
    gate = threading.Barrier(2)
    source, place = tmp_path / "source", tmp_path / "50% t"
    table = ImageTable(spark, place)

    def ingest() -> None:
        gate.wait()
        try:
            results.append(ImageTable(spark, place).ingest(source))
        except Exception as error:  # noqa: BLE001  shown by the assertion below
            results.append(error)

    write_images(source / "cat", range(2))
    (source / "cat" / "broken.jpg").write_text("no image")
    first = table.ingest(source, size=16)
    # An ingest elsewhere
    commit_by_another(place, {"txn": {"appId": APPLICATION_ID, "version": 1, "lastUpdated": 0}})
    early = transaction(spark, place)
    set_by_another(place, {"team.owner": "someone"})
    write_images(source / "cat", range(2, 6))
    write_images(source / "it's", range(10, 14))
    write_image(source / "cat" / "0000.jpg", seed=999)
    threads = [threading.Thread(target=ingest) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.numCachedEntries() == kept
    assert (first.version, first.stored, first.quarantined) == (0, 2, 1)
    assert not [error for error in results if isinstance(error, Exception)]
    late, winner = sorted(results, key=lambda result: result.stored)
    assert (winner.stored, winner.changed, winner.quarantined, winner.skipped) == (9, 1, 0, 2)
    assert (late.stored, late.skipped, late.committed) == (0, 11, False)
    found = Counter(row.path for row in stored_rows(place))
    assert (len(found), set(found.values())) == (10, {1})
    assert table.class_counts() == {"cat": 6, "it's": 4}
    assert [Path(file.path).name for file in table.quarantine().files] == ["broken.jpg"]

    latest = table.version
    early._require_latest = lambda: None  # past its own look, as when both look before either writes
    assert attempted(early, row(spark, "early"), "early") is None
    assert table.version == latest
    assert winner.version == 3
    numbers = log_entries(place, "txn")
    assert {version: txn["version"] for version, txn in numbers.items()} == {0: 0, 1: 1, winner.version: 2}
    assert table.labels() == {"cat": 0, "it's": 1}
    shutil.rmtree(place)  # another table is made in its place
    assert ImageTable(spark, place).ingest(source, size=16).stored == 10


def test_rows_are_replaced_in_a_table_on_which_deletion_vectors_were_enabled(spark, place):
    """MERGE of Delta 3.3.3 fails on Spark 3.5.9 when it writes a deletion vector, so it writes none."""
    session = writing_session(spark)
    append_by_another(place, "a", "b", "c")
    spark.sql(f"ALTER TABLE delta.`{place}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    stale = session.sql("SELECT 'b' AS path")
    assert transaction(session, place).commit(Batch(row(session, "new"), "replaced", stale)) == 3
    assert stored_paths(place) == ["a", "c", "first", "new"]
    assert not any(entry.get("deletionVector") for entry in log_entries(place, "add").values())
