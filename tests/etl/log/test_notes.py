"""Class numbers as they are settled and noted, without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import write_deltalake
from version_tables import commit, images

from lakelens.etl.log.notes import (
    MOST_COMMITS,
    Memory,
    NotedCommit,
    commits_in_files,
    counts_in,
    labels_in,
    note_of,
    remember,
    write_note,
)
from lakelens.etl.model.class_numbers import WrongNumber, merge_older, settle

pytestmark = pytest.mark.unit

OURS = NotedCommit("WRITE", note_of(write_note("ingest", {"cat": 0, "dog": 3}, {"cat": 2, "(no class)": 1})))
RESTORE = NotedCommit("RESTORE", note_of(write_note("restore", {"cat": 0}, None)))


def test_a_note_gives_back_numbers_and_rows_and_says_nothing_of_what_it_lacks() -> None:
    assert labels_in(OURS.note) == {"cat": 0, "dog": 3}
    assert counts_in(OURS.note) == {"cat": 2, "dog": 0, "(no class)": 1}
    assert (labels_in(RESTORE.note), counts_in(RESTORE.note)) == ({"cat": 0}, None)
    for text in (None, "words", "[1]", '{"lakelens": "other"}', json.dumps({"lakelens": "ingest", "classes": ["cat"]})):
        note = note_of(text)
        assert (labels_in(note), counts_in(note)) == (None, None)


@pytest.mark.parametrize(
    ("others", "counts", "rows_follow"),
    [
        ([], {"cat": 2, "dog": 0, "(no class)": 1}, True),
        (["OPTIMIZE", "VACUUM END", "SET TBLPROPERTIES"], {"cat": 2, "dog": 0, "(no class)": 1}, True),
        (["OPTIMIZE", "WRITE"], None, False),
        (["RESTORE"], None, False),
    ],
)
def test_rows_are_trusted_until_others_have_written_some(
    others: list[str], counts: dict[str, int] | None, rows_follow: bool
) -> None:
    commits = [*(NotedCommit(operation, {}) for operation in others), OURS]
    assert remember(commits) == Memory({"cat": 0, "dog": 3}, counts, rows_follow)


def test_rows_of_a_restored_version_are_looked_at() -> None:
    assert remember([RESTORE, OURS]) == Memory({"cat": 0}, None, rows_follow=False)


def test_a_long_log_is_read_up_to_its_newest_note_and_never_whole(tmp_path: Path) -> None:
    place = tmp_path / "t"
    write_deltalake(str(place), images(cat=["c1"]))
    note = write_note("ingest", {"cat": 0}, {"cat": 1}, batch_id="b")
    commit(place, {"commitInfo": {"operation": "WRITE", "userMetadata": note}})
    commit(place, {"commitInfo": {"operation": "OPTIMIZE"}})
    read = commits_in_files(str(place), 2)
    assert remember(read) == Memory({"cat": 0}, {"cat": 1}, rows_follow=True)
    assert [found.operation for found in read] == ["WRITE"]  # version 0 was left
    assert remember(NotedCommit("WRITE", {}) for _ in range(2 * MOST_COMMITS)) is None
    (place / "_delta_log" / f"{1:020d}.json").unlink()
    assert [found.operation for found in commits_in_files(str(place), 2)] == ["OPTIMIZE"]


def test_what_was_noted_comes_before_the_property_and_that_before_the_rows() -> None:
    noted, stated = {"cat": 0, "cow": 2}, {"cat": 0, "dog": 1, "elk": 2}
    rows = {("fox", 7): 3, ("fox", 8): 1, ("gnu", 2): 5, ("cat", 0): 9, ("dog", 4): 2}
    found = settle(noted, stated, rows)
    assert found.labels == {"cat": 0, "dog": 1, "cow": 2, "fox": 7}
    assert found.wrong == (
        WrongNumber("dog", 4, 2, "while its number is 1"),
        WrongNumber("fox", 8, 1, "while its number is 7"),
        WrongNumber("gnu", 2, 5, "which is that of 'cow'"),
    )
    assert found.contradictions == ()
    assert "5 rows and boxes of 'gnu' with the number 2, which is that of 'cow'" in found.summary()
    assert settle({"cat": 0}, {"cat": 4}, {}).findings() == (
        "the table property lakelens.labels gives 'cat' the number 4, while its number is 0",
    )


def test_of_two_classes_with_one_number_the_one_with_more_rows_keeps_it() -> None:
    found = settle({}, {}, {("zebra", 0): 2, ("cat", 0): 9})
    assert (found.labels, [wrong.name for wrong in found.wrong]) == ({"cat": 0}, ["zebra"])


def test_older_versions_keep_their_numbers() -> None:
    assert merge_older([{"cat": 0, "dog": 1}, {"zebra": 0, "yak": 2}, {"cat": 5}]) == {"cat": 0, "dog": 1, "yak": 2}
