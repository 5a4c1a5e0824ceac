"""Editing stored rows: deletions that last, classes with a new name, compacted files; each one commit."""

from __future__ import annotations

import contextlib
import io
import json
import operator
import os
import re
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta_rows import delta_rows
from deltalake import DeltaTable, write_deltalake
from etl_pictures import write_image
from made_tables import append_as_another, make_table
from stored_rows import names_and_numbers

from lakelens import ImageTable, spark_session
from lakelens.errors import InvalidArgumentError, NotAnImageTableError, TableConflictError
from lakelens.etl.commit.known_classes import record_classes
from lakelens.etl.model import schema
from lakelens.etl.versions.edits import TableEdit, check_names
from lakelens.jobs.cli import main
from lakelens.ledger.store import change, read
from lakelens.table import Table

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SIZE = 16


@pytest.fixture
def source(tmp_path) -> Path:
    """Four cats and three dogs."""
    for name, first, count in (("cat", 0, 4), ("dog", 100, 3)):
        for number in range(count):
            write_image(tmp_path / "images" / name / f"{number}.jpg", seed=first + number)
    return tmp_path / "images"


@pytest.fixture
def table(spark, source, tmp_path) -> ImageTable:
    """The images in version 0."""
    return ImageTable(spark, make_table(tmp_path / "it's a table", source, size=SIZE, splits={"train": 1.0}))


@pytest.fixture(autouse=True)
def nothing_kept(spark):
    """No action leaves rows in the application's cache, whether it commits, loses to another writer or fails."""
    cache = spark._jsparkSession.sharedState().cacheManager()
    before = cache.numCachedEntries()
    yield
    assert cache.numCachedEntries() == before


def run(*arguments: str, code: int = 0) -> dict:
    """Runs a command, which exits with this code; gives its last line."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["table", *arguments]) == code
    return json.loads(printed.getvalue().splitlines()[-1])


def rows_by_path(table: ImageTable, version: int | None = None) -> list[dict]:
    """The rows of a version, whose times are in UTC whether the writer says so or not."""
    rows = [
        {**row, "source_modified": row["source_modified"].replace(tzinfo=None)}
        for row in delta_rows(table.location, version)
    ]
    return sorted(rows, key=operator.itemgetter("path"))


def test_deleted_files_stay_out_until_their_content_changes_or_their_rows_are_restored(table, source):
    found = run("delete", table.location, "path LIKE '%/0.jpg'")
    assert (found["version"], found["deleted"], found["committed"]) == (1, {"cat": 1, "dog": 1}, True)
    assert table.history(1)[0].class_counts == table.class_counts() == {"cat": 3, "dog": 2}
    entries = table.quarantine(reason="deleted").files
    assert [entry.path.split("/")[-2:] for entry in entries] == [["cat", "0.jpg"], ["dog", "0.jpg"]]
    assert "path LIKE" in entries[0].error
    touched = source / "dog" / "0.jpg"
    before = touched.stat()
    os.utime(touched, (1_600_000_000, 1_600_000_000))
    write_image(source / "cat" / "0.jpg", seed=999)
    again = table.ingest(source)
    assert (again.stored, again.skipped, table.class_counts()) == (1, 6, {"cat": 4, "dog": 2})
    assert [entry.path.split("/")[-2] for entry in table.quarantine().files] == ["dog"]
    os.utime(touched, ns=(before.st_atime_ns, before.st_mtime_ns))
    table.restore(0)
    restored = table.ingest(source)
    assert (restored.stored, restored.changed, restored.skipped) == (1, 1, 6)
    assert (table.class_counts(), table.quarantine().files) == ({"cat": 4, "dog": 3}, ())


def test_a_deletion_of_nothing_commits_nothing_and_what_cannot_be_deleted_from_is_refused(table):
    assert (table.delete("width > 1000").committed, table.version) == (False, 0)
    for condition in ("height = 'tall'", "width % (height - height) = 0"):  # the second fails once it is computed
        run("delete", table.location, condition, code=2)
    assert table.version == 0
    write_deltalake(f"{table.location}-3", pa.table({"id": [0, 1, 2]}))
    with pytest.raises(NotAnImageTableError, match="lakelens did not create it"):
        ImageTable(table.spark, f"{table.location}-3").delete("true")


def test_a_class_keeps_its_number_and_its_names_through_renames_and_restores(table, source):
    # A rename that was killed before its commit is completed by the same call.
    change(Table.of(table.location), lambda ledger: ledger.begun("dog", "hound", 0))
    found = run("rename-class", table.location, "dog", "hound")
    hound = table.version
    assert (found["version"], found["number"], found["rows"]) == (hound, 1, 3)
    assert names_and_numbers(table.location) == {("cat", 0), ("hound", 1)}
    assert table.labels() == {"cat": 0, "hound": 1}
    assert table.history(1)[0].class_counts == {"cat": 4, "hound": 3}
    assert {(row["label_name"], row["change"]) for row in table.changes(0).to_pylist()} == {("hound", "label")}
    assert table.diff(0).label == {"hound": 3}
    latest = table.rename_class("hound", "wolf").version
    for name in ("dog", "hound"):  # also the last step of a swap
        with pytest.raises(
            InvalidArgumentError, match=rf"'{name}' was the name of the class 'wolf', with the number 1"
        ):
            check_names(Table.of(table.location), "cat", name)
    run("rename-class", table.location, "cat", "dog", code=2)
    assert table.version == latest
    check_names(Table.of(table.location), "wolf", "dog")  # its own earlier name
    write_image(source / "dog" / "late.jpg", seed=500)
    result = table.ingest(source, classes=["cat", "dog"])
    (source / "dog" / "late.jpg").unlink()
    assert (result.stored, result.skipped, result.vanished_classes, result.new_classes) == (1, 7, (), ())
    assert names_and_numbers(table.location) == {("cat", 0), ("wolf", 1)}
    table.restore(0)
    assert (table.labels(), names_and_numbers(table.location)) == ({"cat": 0, "dog": 1}, {("cat", 0), ("dog", 1)})
    with pytest.raises(InvalidArgumentError, match="'wolf' was the name of the class 'dog'"):
        check_names(Table.of(table.location), "cat", "wolf")
    for name, seed in (("bee", 502), ("wolf", 511)):
        write_image(source / name / "late.jpg", seed=seed)
    table.ingest(source)
    assert names_and_numbers(table.location) == {("cat", 0), ("dog", 1), ("bee", 2)}
    DeltaTable(table.location).restore(hound)  # by a tool that records nothing
    assert table.ingest(source).stored == 2
    assert table.labels() == {"cat": 0, "hound": 1, "bee": 2}
    assert names_and_numbers(table.location) == {("cat", 0), ("hound", 1), ("bee", 2)}
    assert table.repair(dry_run=True).findings == ()


def before_the_commit(monkeypatch, meanwhile):
    """Lets another writer do its work between what an edit writes first and its commit."""
    own = TableEdit.commit

    def late(self, *args, **kwargs):
        monkeypatch.setattr(TableEdit, "commit", own)
        meanwhile()
        return own(self, *args, **kwargs)

    monkeypatch.setattr(TableEdit, "commit", late)


def test_a_rename_that_lost_leaves_the_new_name_to_a_new_class(table, source, monkeypatch):
    write_image(source / "wolf" / "0.jpg", seed=600)
    before_the_commit(monkeypatch, lambda: ImageTable(table.spark, table.location).ingest(source))
    with pytest.raises(TableConflictError):
        table.rename_class("dog", "wolf")
    labels = {"cat": 0, "dog": 1, "wolf": 2}
    assert (table.labels(), names_and_numbers(table.location)) == (labels, set(labels.items()))
    ledger = read(Table.of(table.location))
    assert ([one.renaming for one in ledger.classes], ledger.aliases) == ([None] * 3, {})
    assert table.repair(dry_run=True).findings == ()


def test_a_deletion_that_failed_leaves_nothing_in_quarantine(table, monkeypatch):
    table.delete("path LIKE '%/cat/3.jpg'")
    late = {**delta_rows(table.location)[0], "path": "file:///late.jpg"}
    before_the_commit(monkeypatch, lambda: append_as_another(table, [late]))
    with pytest.raises(TableConflictError) as caught:
        table.delete("path LIKE '%/0.jpg'")
    assert not re.search(r"run the ingest|calling o\d+", str(caught.value))
    assert [entry.path.rsplit("/", 1)[1] for entry in table.quarantine().files] == ["3.jpg"]
    assert sum(table.class_counts().values()) == 7


def test_a_name_that_is_taken_or_unknown_is_refused_with_the_nearest(table):
    with pytest.raises(InvalidArgumentError, match=r"no class 'dogg'; did you mean 'dog'"):
        table.rename_class("dogg", "hound")
    with pytest.raises(InvalidArgumentError, match=r"a class 'cat' already, with the number 0"):
        table.rename_class("dog", "cat")
    for name in ("", " ", "(no class)", 7):
        with pytest.raises(InvalidArgumentError, match="the name of a class"):
            table.rename_class("dog", name)
    assert table.version == 0


def test_small_files_are_compacted_in_one_commit_and_row_groups_stay_small(table, monkeypatch):
    first = delta_rows(table.location)[0]
    for number in range(2):
        append_as_another(table, [{**first, "path": f"file:///late/{number}.jpg"}])
    before, rows = table.snapshot(), rows_by_path(table)
    record_classes(Table.of(table.location), before.version, Counter(row["label_name"] for row in rows))
    monkeypatch.setattr(schema, "ROW_GROUP_BYTES", 1024)
    active = spark_session()  # that of the command: another test may have left a clone of `spark` active
    active.conf.set("parquet.page.size.row.check.min", "1")  # Parquet would not look at a group's size before row 100
    try:
        found = run("optimize", table.location)
    finally:
        active.conf.unset("parquet.page.size.row.check.min")
    after = table.snapshot()
    assert (found["committed"], found["version"]) == (True, before.version + 1)
    assert (found["files_removed"], found["files_added"]) == (len(before.files), len(after.files))
    assert len(after.files) < len(before.files)
    assert table.changes(before.version).num_rows == 0
    assert rows_by_path(table) == rows_by_path(table, before.version) == rows  # an ingest finds nothing to do
    assert table.history(2)[0].class_counts == table.class_counts()
    parquet = pq.ParquetFile(after.file_location(0))
    assert parquet.num_row_groups > 1
    image = parquet.metadata.row_group(0).column(parquet.schema_arrow.names.index("image"))
    assert image.compression == "UNCOMPRESSED"
    assert "RLE_DICTIONARY" not in image.encodings
    assert (table.optimize().committed, table.version) == (False, after.version)
