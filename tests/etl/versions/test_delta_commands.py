"""Restoring a version: its rows and nothing else, and what the next ingest makes of it; a VACUUM of a clone."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from delta_rows import delta_rows
from deltalake import write_deltalake
from etl_pictures import write_image
from made_tables import make_table
from snapshots import open_snapshot
from stored_rows import files_of

from lakelens import ImageTable
from lakelens.errors import NotAnImageTableError, VersionFilesMissingError, VersionNotFoundError
from lakelens.etl.versions.delta_commands import RestoreResult
from lakelens.jobs.cli import main
from lakelens.ledger.protection import vacuuming
from lakelens.table import Table

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def rows_of(table: ImageTable, version: int | None = None) -> dict[str, tuple[str, int]]:
    rows = delta_rows(table.location, version)
    found = {Path(row["path"]).name: (row["content_hash"], row["label"]) for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.fixture(scope="module")
def story(spark, tmp_path_factory):
    """Two versions, the first restored by the command; then the folder once more."""
    root = tmp_path_factory.mktemp("restore") / "50% é"
    source = root / "images"
    for number in range(3):
        write_image(source / "cat" / f"cat{number}.jpg", seed=number)
    write_image(source / "cat" / "turns_bad.jpg", seed=7)
    table = ImageTable(spark, make_table(root / "table", source, size=16))
    for number in range(2):
        write_image(source / "dog" / f"dog{number}.jpg", seed=100 + number)
    write_image(source / "cat" / "cat0.jpg", seed=99)
    write_image(source / "cat" / "late.jpg", seed=8)
    (source / "cat" / "turns_bad.jpg").write_text("no image any more")
    told = {"grown": table.ingest(source).version}
    table.pin("first", 0)
    told["before"] = (rows_of(table, 0), rows_of(table))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        told["code"] = main(["table", "restore", f"{table.location}@first"])
    found = json.loads(printed.getvalue().splitlines()[-1])
    told["restored"] = RestoreResult(**{name: found[name] for name in RestoreResult.__dataclass_fields__})
    told["restored rows"] = rows_of(table)
    told["again"] = table.restore(0)
    told["ingested"] = table.ingest(source)
    return {"table": table, "source": source, **told}


def test_a_restored_version_has_exactly_the_old_rows_and_says_what_came_and_went(story):
    assert story["restored rows"] == story["before"][0] != story["before"][1]
    assert story["code"] == 0
    assert story["restored"] == RestoreResult(
        version=story["grown"] + 1,
        restored=0,
        added={"cat": 1},
        removed={"cat": 1, "dog": 2},
        changed={"cat": 1},
        user=story["restored"].user,
        committed=True,
    )


def test_a_restore_is_in_the_history_with_who_and_which(story):
    entries = {entry.version: entry for entry in story["table"].history()}
    grown = story["grown"]
    first, ingest, restore = (entries[version] for version in (0, grown, grown + 1))
    assert (restore.operation, restore.restored) == ("RESTORE", 0)
    assert restore.user == ingest.user
    assert restore.class_counts == {**first.class_counts, "dog": 0}  # whose number is still known
    assert [entry.restored for entry in (first, ingest)] == [None, None]


def test_a_second_restore_makes_no_version_and_the_next_ingest_takes_again_what_was_removed(story):
    again, result = story["again"], story["ingested"]
    assert (again.version, again.committed, again.added, again.removed) == (story["restored"].version, False, {}, {})
    assert (result.version, result.committed, result.quarantined) == (story["table"].version, True, 1)
    assert result.rows_in == 7 == result.stored + result.quarantined + result.skipped
    assert rows_of(story["table"], result.version) == story["before"][1]


def test_a_restore_waits_for_a_vacuum_and_brings_back_nothing_that_it_took(story, spark, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(story["table"].location, copy)
    table, (gone, *_) = ImageTable(spark, copy), open_snapshot(copy, 0).files.paths
    table.unpin("first")  # a VACUUM keeps what is pinned
    latest, rows, held = table.version, rows_of(table), threading.Event()

    def vacuum() -> None:
        with vacuuming(Table.of(copy), latest):
            held.set()
            time.sleep(2)
            (copy / gone).unlink()

    working = threading.Thread(target=vacuum)
    working.start()
    held.wait(20)
    with pytest.raises(VersionFilesMissingError, match=r"@0: 1 of its .* are gone.* with all their files: ") as caught:
        table.restore(0)
    working.join()
    assert gone in str(caught.value)
    assert (table.version, rows_of(table)) == (latest, rows)


def test_what_cannot_be_restored_is_refused_by_name(story, spark, tmp_path):
    with pytest.raises(VersionNotFoundError, match="its pins: first"):
        story["table"].restore("gold")
    for _ in range(2):
        write_deltalake(str(tmp_path / "other"), pa.table({"id": [0, 1, 2]}), mode="append")
    with pytest.raises(NotAnImageTableError, match=r"other.*lakelens\.recipe"):
        ImageTable(spark, tmp_path / "other").restore(0)


def test_a_vacuum_of_a_shallow_clone_by_spark_takes_the_clones_own_files_alone(spark, tmp_path):
    source, clone = tmp_path / "source", tmp_path / "clone"
    write_deltalake(str(source), pa.table({"id": range(10)}))
    spark.sql(f"CREATE TABLE delta.`{clone}` SHALLOW CLONE delta.`{source}`").collect()
    write_deltalake(str(clone), pa.table({"id": range(10, 20)}), mode="append")
    (own,) = [path for path in files_of(clone) if path.is_relative_to(clone)]
    theirs = files_of(source)
    assert [entry.rows for entry in ImageTable(None, clone).history()] == [20, 10]
    write_deltalake(str(clone), pa.table({"id": [20]}), mode="overwrite")  # removes both from the log
    assert ImageTable(None, clone).vacuum(0, allow_short_retention=True).files == (own.name,)
    assert not own.exists()
    assert all(path.exists() for path in theirs)
    assert sorted(row["id"] for row in delta_rows(source)) == list(range(10))
