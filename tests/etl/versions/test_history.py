"""The history: what each commit made of the table, and who made it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from snapshots import open_snapshot
from version_tables import commit, images, set_configuration, three_versions, write

from lakelens import ImageTable
from lakelens.errors import InvalidArgumentError
from lakelens.etl.versions.history import VersionInfo, commits
from lakelens.table import Table

pytestmark = pytest.mark.unit


def history(place: Path, limit: int | None = None) -> list[VersionInfo]:
    return ImageTable(None, place).history(limit)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return three_versions(tmp_path)


def test_history_says_rows_classes_batch_and_who_newest_first_from_the_log_alone(table: Path) -> None:
    for file in table.glob("*.parquet"):
        file.unlink()
    found = history(table)
    assert [entry.version for entry in found] == [2, 1, 0]
    assert [entry.rows for entry in found] == [5, 5, 3]
    assert [entry.class_counts for entry in found] == [
        {"cat": 2, "dog": 2, "cow": 1},
        {"cat": 2, "dog": 3, "cow": 0},
        {"cat": 2, "dog": 1, "cow": 0},
    ]
    assert (found[0].batch_id, found[0].source, found[0].user) == ("b1", "/photos", "ann")
    assert found[0].timestamp >= found[2].timestamp
    assert found[0].timestamp == open_snapshot(table).timestamp


def test_a_commit_that_is_no_ingest_has_no_batch_and_one_of_a_restore_says_which(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), images(cat=["c1"]))
    note = json.dumps({"lakelens": "restore", "restored": 0, "user": "ann"})
    commit(tmp_path / "t", {"commitInfo": {"operation": "RESTORE", "userMetadata": note}})
    commit(tmp_path / "t", {"txn": {"appId": "x", "version": 1}})
    restored, bare, first = (history(tmp_path / "t")[i] for i in (1, 0, 2))
    assert (first.rows, first.batch_id, first.user, first.restored) == (1, None, None, None)
    assert (restored.operation, restored.user, restored.restored) == ("RESTORE", "ann", 0)
    assert (bare.version, bare.rows, bare.operation) == (2, 1, "")


def test_the_newest_alone_are_listed_with_the_same_numbers(table: Path) -> None:
    assert history(table, 2) == history(table)[:2]
    assert history(table, 9) == history(table)
    for limit in (0, -1, True, 1.5):
        with pytest.raises(InvalidArgumentError, match="limit"):
            history(table, limit)


def test_rows_of_every_commit_are_those_of_the_version_that_delta_rs_opens(tmp_path: Path) -> None:
    """Also where paths are quoted, files come back, properties change and nothing says how many rows a file has."""
    place = tmp_path / "t"
    for number, split in enumerate(["train", "50% é/x", "a b", "train"]):
        rows = pa.table({"path": [f"p{number}"], "label_name": [f"c{number % 2}"], "split": [split]})
        write_deltalake(str(place), rows, mode="append", partition_by=["split"])
    DeltaTable(str(place)).delete("label_name = 'c1'")
    DeltaTable(str(place)).restore(3)
    last = json.loads((place / "_delta_log" / f"{3:020d}.json").read_text().splitlines()[-1])["add"]
    commit(place, {"remove": {"path": last["path"], "dataChange": True}})
    commit(place, {"add": {key: value for key, value in last.items() if key != "stats"}})
    DeltaTable(str(place)).alter.set_table_properties({"delta.appendOnly": "false"})
    DeltaTable(str(place)).create_checkpoint()
    write_deltalake(str(place), rows, mode="append", partition_by=["split"])
    found = list(commits(Table.of(place)))
    assert [commit.version for commit in found] == list(range(10))
    assert [commit.rows for commit in found] == [open_snapshot(place, commit.version).rows for commit in found]
    assert [entry.rows for entry in history(place)] == [commit.rows for commit in reversed(found)]
    assert found[7].rows is None  # nothing says how many rows its file has


def test_rows_that_a_deletion_vector_deletes_are_not_counted(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), images(cat=["c1", "c2", "c3"]))
    actions = (tmp_path / "t" / "_delta_log" / f"{0:020d}.json").read_text().splitlines()
    (added,) = (action["add"] for action in map(json.loads, actions) if "add" in action)
    vector = {"storageType": "u", "pathOrInlineDv": "x", "offset": 1, "sizeInBytes": 36, "cardinality": 2}
    removed = {"path": added["path"], "dataChange": True}
    commit(tmp_path / "t", {"remove": removed}, {"add": {**added, "deletionVector": vector}})
    assert [entry.rows for entry in commits(Table.of(tmp_path / "t"))] == [3, 1]


def test_versions_before_a_cleaned_log_have_no_rows_and_later_ones_are_right(tmp_path: Path) -> None:
    place = tmp_path / "t"
    for number in range(6):
        write(place, images(cat=[f"c{number}"]), counts={"cat": number + 1})
        if number == 3:
            DeltaTable(str(place)).create_checkpoint()
    for number in (0, 1):
        (place / "_delta_log" / f"{number:020d}.json").unlink()
    assert [(entry.version, entry.rows) for entry in history(place)] == [(5, 6), (4, 5), (3, 4), (2, None)]
    assert history(place, 1)[0].class_counts == {"cat": 6, "dog": 0, "cow": 0}


def test_commits_of_others_have_no_counts_and_neither_have_counts_that_do_not_add_up(table: Path) -> None:
    write_deltalake(str(table), images(cat=["c9"]), mode="append")
    # As of another table that was put in this one's place.
    write(table, images(cat=["c10"]), counts={"cat": 5, "dog": 2, "cow": 1})
    found = history(table, 2)
    assert [(entry.rows, entry.class_counts) for entry in found] == [(7, None), (6, None)]


def test_a_class_whose_name_holds_separators_of_lines_does_not_end_the_history(table: Path) -> None:
    separators = "\u2028\u2029\u0085"
    set_configuration(table, 0, lakelens__labels=json.dumps({f"ca{separators}t": 0}, ensure_ascii=False))
    log = table / "_delta_log" / f"{0:020d}.json"
    text = log.read_text().replace(json.dumps(separators)[1:-1], separators)  # as Spark writes it
    assert separators in text
    log.write_text(text, encoding="utf-8")
    assert [entry.rows for entry in history(table)] == [5, 5, 3]
