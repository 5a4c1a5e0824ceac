"""Both ways to commit a batch, Delta's transaction and its public writers: one batch, one commit, nothing doubled."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path

import pytest
from etl_pictures import write_image

from lakelens import ImageTable
from lakelens.errors import TableConflictError
from lakelens.etl import commit
from lakelens.etl.commit import open_transaction
from lakelens.etl.public_commit import last_number
from lakelens.etl.transaction import Batch, set_properties
from lakelens.etl.writing import writing_session

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

DDL = "path STRING, split STRING"


@pytest.fixture(params=["driven", "public"])
def writers(request, monkeypatch):
    """Both kinds of transaction; the second is what `open_transaction` gives where Delta's classes are renamed."""
    if request.param == "public":
        monkeypatch.setattr(commit, "_has_delta_classes", lambda _: False)
    return request.param


@pytest.fixture
def place(spark, tmp_path):
    """A table of one row, at version 0."""
    location = str(tmp_path / "50% t")
    spark.createDataFrame([("first", "train")], DDL).write.format("delta").partitionBy("split").save(location)
    return location


def row(spark, path):
    return spark.createDataFrame([(path, "train")], DDL)


def paths(spark, location):
    return sorted(row.path for row in spark.read.format("delta").load(location).collect())


def test_each_ingest_has_the_number_after_the_last_whatever_was_committed_between(spark, place, writers):
    for number, name in enumerate(["a", "b", "c"]):
        transaction = open_transaction(spark, place)
        assert transaction.version == 2 * number
        committed = transaction.commit(Batch(row(spark, name), f"note {name}"))
        assert (committed.version, committed.rows) == (2 * number + 1, 1)
        set_properties(spark, place, {"team.owner": name})
    last = [last_number(spark, place, version) for version in range(7)]
    assert last == [-1, 0, 0, 1, 1, 2, 2]
    assert paths(spark, place) == ["a", "b", "c", "first"]


def test_the_last_number_is_found_behind_a_checkpoint_and_a_cleaned_log(spark, place):
    for name in ("a", "b"):
        open_transaction(spark, place).commit(Batch(row(spark, name), f"note {name}"))
    log = spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, place)
    log.checkpoint()
    for version in range(2):
        (Path(place) / "_delta_log" / f"{version:020d}.json").unlink()
    assert last_number(spark, place, 2) == 1


def test_rows_are_replaced_and_properties_set_with_the_new_ones(spark, place, writers):
    session = writing_session(spark)
    transaction = open_transaction(session, place)
    committed = transaction.commit(
        Batch(row(session, "second"), "note", "path IN ('first')", {"lakelens.labels": "it's"})
    )
    assert paths(spark, place) == ["second"]
    assert open_transaction(spark, place).property("lakelens.labels") == "it's"
    assert committed.version == (2 if writers == "public" else 1)


def test_a_long_list_of_replaced_rows_does_not_swell_the_log(spark, place):
    session = writing_session(spark)
    paths_of_rows = ", ".join(f"'{number:0100d}'" for number in range(2000))
    committed = open_transaction(session, place).commit(
        Batch(row(session, "second"), "note", f"path IN ({paths_of_rows}, 'first')")
    )
    assert paths(spark, place) == ["second"]
    assert (Path(place) / "_delta_log" / f"{committed.version:020d}.json").stat().st_size < 20_000


def statistics(rows, first_batch, last_batch):
    return json.dumps(
        {"numRecords": rows, "minValues": {"batch_id": first_batch}, "maxValues": {"batch_id": last_batch}}
    )


def test_new_rows_are_told_from_rewritten_ones_by_their_batch_or_not_at_all():
    new, rewritten = statistics(2, "new", "new"), statistics(5, "early", "late")
    assert commit._row_count([new, rewritten, new], "new", is_append=False) == 4
    assert commit._row_count([rewritten], "new", is_append=False) == 0
    assert commit._row_count([new, rewritten], None, is_append=False) is None
    assert commit._row_count([new, '{"numRecords": 5}'], "new", is_append=False) is None
    assert commit._row_count([new, '{"numRecords": 5}'], None, is_append=True) == 7
    assert commit._row_count([new, None], "new", is_append=True) is None  # Delta was told to collect none


def test_a_writer_that_planned_before_anothers_commit_is_refused(spark, place, writers):
    """Also when what lies between is half of a batch: the properties, which the public writers commit first."""
    first = open_transaction(spark, place)
    set_properties(spark, place, {"lakelens.labels": "{}"})
    second = open_transaction(spark, place)
    second_rows = row(spark, "same")
    if writers == "driven":
        with pytest.raises(TableConflictError):
            first.commit(Batch(row(spark, "same"), "note 1"))
        first = open_transaction(spark, place)
    else:
        first._latest = lambda: first.version  # past its own look, as when both look before either writes
    first.commit(Batch(row(spark, "same"), "note 1"))
    if writers == "public":
        second._latest = lambda: second.version
    with pytest.raises(TableConflictError):
        second.commit(Batch(second_rows, "note 2"))
    assert paths(spark, place) == ["first", "same"]


def test_of_two_that_write_at_once_one_commits_and_one_is_told(spark, place, writers):
    transactions = [open_transaction(spark, place) for _ in range(2)]
    gate = threading.Barrier(2)
    outcomes: list[object] = []

    def write(number: int) -> None:
        rows = row(spark, "same")
        gate.wait()
        try:
            outcomes.append(transactions[number].commit(Batch(rows, f"note {number}")).version)
        except TableConflictError as error:
            outcomes.append(type(error))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, outcomes)) == sorted(map(str, [1, TableConflictError]))
    assert paths(spark, place) == ["first", "same"]


def test_ingests_through_the_public_writers_store_each_file_once(spark, class_folders, tmp_path, monkeypatch):
    monkeypatch.setattr(commit, "_has_delta_classes", lambda _: False)
    source = class_folders("source", cat=6, cow=4)
    table = ImageTable(spark, tmp_path / "t")
    table.ingest(class_folders("start", cat=2), size=16)
    results: list[object] = []
    gate = threading.Barrier(2)

    def ingest() -> None:
        gate.wait()
        try:
            results.append(ImageTable(spark, tmp_path / "t").ingest(source).stored)
        except Exception as error:  # noqa: BLE001  shown by the assertion below
            results.append(error)

    threads = [threading.Thread(target=ingest) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [0, 10]
    write_image(source / "cat" / "0000.jpg", seed=999)
    (source / "cat" / "broken.jpg").write_text("no image")
    changed = table.ingest(source)
    assert (changed.stored, changed.changed, changed.quarantined, changed.skipped) == (1, 1, 1, 9)
    found = Counter(row.path for row in table.read().select("path").collect())
    assert (len(found), set(found.values())) == (12, {1})
    assert table.class_counts() == {"cat": 8, "cow": 4}
