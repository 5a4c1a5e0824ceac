"""What a version holds by class, and how two versions differ."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from snapshots import open_snapshot
from version_tables import images, set_configuration, three_versions, write

from lakelens import ImageTable
from lakelens.errors import SessionError, VersionFilesMissingError
from lakelens.etl.model.classes import NO_CLASS
from lakelens.etl.versions import changes as versions
from lakelens.etl.versions.changes import class_counts
from lakelens.etl.versions.delta_commands import difference
from lakelens.table import Table

pytestmark = pytest.mark.unit


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return three_versions(tmp_path)


def counts(place: Path, version: int | None = None) -> list[tuple[str, int]]:
    return list(class_counts(open_snapshot(place, version)).items())


def test_a_diff_counts_added_removed_and_changed_rows_by_class(table: Path) -> None:
    assert versions.diff(Table.of(table), 0, 1) == versions.VersionDiff(0, 1, {"dog": 2}, {}, {})
    assert versions.diff(Table.of(table), 1) == versions.VersionDiff(
        1, 2, {"cow": 1}, {"dog": 1}, {"cat": 1}, {"cat": 1}
    )
    back = versions.VersionDiff(2, 0, {"dog": 1}, {"cow": 1, "dog": 2}, {"cat": 1}, {"cat": 1})
    assert versions.diff(Table.of(table), 2, 0) == back
    assert versions.diff(Table.of(table), 2, 2) == versions.VersionDiff(2, 2, {}, {}, {})


def test_changes_lists_one_row_per_kind_of_change_and_diff_counts_them(tmp_path: Path) -> None:
    def split(rows: pa.Table, name: str) -> pa.Table:
        return rows.append_column("split", pa.array([name] * rows.num_rows))

    place = tmp_path / "t"
    for rows in (split(images(cat=["c1", "c2", "c3", "gone"]), "train"), split(images(dog=["d1"]), "test")):
        write(place, rows, partition_by=["split"])
    rewritten = [split(images(cat=["c1"], dog=["c2=new"], cow=["w1"]), "train"), split(images(cat=["c3"]), "test")]
    write(place, pa.concat_tables([*rewritten, split(images(**{"": ["d1"]}), "test")]), "overwrite")
    found = [tuple(row.values()) for row in ImageTable(None, place).changes(1, 2).to_pylist()]
    assert found == [
        ("c2", "dog", "content"),
        ("c2", "dog", "label"),
        ("c3", "cat", "split"),
        ("d1", None, "label"),
        ("gone", "cat", "removed"),
        ("w1", "cow", "added"),
    ]
    counted = versions.diff(Table.of(place), 1)
    assert (counted.added, counted.removed, counted.content) == ({"cow": 1}, {"cat": 1}, {"dog": 1})
    assert (counted.label, counted.split, counted.changed) == (
        {NO_CLASS: 1, "dog": 1},
        {"cat": 1},
        {NO_CLASS: 1, "dog": 1},
    )
    assert ImageTable(None, place).changes(2).num_rows == 0


def test_classes_are_counted_by_number_with_zeros_and_then_by_name(table: Path, tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "none"), pa.table({"id": [7, 7, 3]}))
    assert counts(tmp_path / "none") == []
    assert counts(table) == [("cat", 2), ("dog", 2), ("cow", 1)]
    shutil.rmtree(table / "_lakelens")
    assert counts(table) == [("cat", 2), ("cow", 1), ("dog", 2)]
    set_configuration(table, 0, lakelens__labels='{"dog": 0, "emu": 1, "cat": 2}')
    assert counts(table, 1) == [("dog", 3), ("emu", 0), ("cat", 2)]
    assert counts(table) == [("dog", 2), ("emu", 0), ("cat", 2), ("cow", 1)]


def test_a_diff_reads_classes_that_are_partitions_and_files_that_are_older_than_a_column(tmp_path: Path) -> None:
    write(tmp_path / "parts", images(cat=["c1"], dog=["d1"]), partition_by=["label_name"])
    write(tmp_path / "parts", images(cat=["c1=new"], dog=["d1", "d2"]), "overwrite", partition_by=["label_name"])
    assert versions.diff(Table.of(tmp_path / "parts"), 0) == versions.VersionDiff(
        0, 1, {"dog": 1}, {}, {"cat": 1}, {"cat": 1}
    )
    place = tmp_path / "grown"
    write(place, images(cat=["c1"]).drop_columns(["label_name"]))
    write(place, images(cat=["c2"]), schema_mode="merge")
    write(place, images(dog=["d1"]), "overwrite")
    assert versions.diff(Table.of(place), 1) == versions.VersionDiff(1, 2, {"dog": 1}, {"cat": 1, NO_CLASS: 1}, {})


def test_a_version_whose_files_are_gone_names_them_and_the_whole_versions(table: Path) -> None:
    gone = open_snapshot(table, 0).files.paths[0]
    (table / gone).unlink()
    for look in (lambda: counts(table, 1), lambda: versions.diff(Table.of(table), 1)):
        with pytest.raises(VersionFilesMissingError, match=r"@1: 1 of its 2 data file.*all their files: 2$") as caught:
            look()
        assert gone in str(caught.value)
    assert counts(table) == [("cat", 2), ("dog", 2), ("cow", 1)]


def test_a_restore_from_what_cannot_be_read_counts_every_row_as_added(table: Path) -> None:
    assert difference(Table.of(table), 1, 2) == versions.diff(Table.of(table), 1, 2)
    (table / open_snapshot(table, 0).files.paths[0]).unlink()
    assert difference(Table.of(table), 1, 2) == versions.VersionDiff(1, 2, {"cat": 2, "cow": 1, "dog": 2}, {}, {})


def test_an_image_table_without_spark_says_what_needs_spark(table: Path) -> None:
    held = ImageTable(None, table)
    for work in (lambda: held.restore(0), held.read, lambda: held.ingest("/photos"), held.read_quarantine):
        with pytest.raises(SessionError, match=r"opened without Spark.*spark_session"):
            work()
