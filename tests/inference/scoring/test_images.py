"""Rules of how tasks read images: those of the chosen rows, in bounded batches, and of no other row."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakelens.errors import DataFileError, NotAnImageTableError, VersionFilesMissingError
from lakelens.inference.scoring.images import FILE, ImageFiles, tasks_for

pytestmark = pytest.mark.unit

ROWS = 23
KEYS = {"path": "uri", "content_hash": "etag"}


@pytest.fixture
def files(tmp_path):
    """Two files of some row groups, in a folder whose name Spark escapes; the images name file and row."""
    folder = tmp_path / "day=1 ä%20"
    folder.mkdir()
    for name in ("a", "b"):
        images = pa.array([f"{name}{row}".encode() * 100 for row in range(ROWS)], pa.binary())
        paths, keys = [f"{name}{row}" for row in range(ROWS)], [row // 2 for row in range(ROWS)]
        table = pa.table({"other": list(range(ROWS)), "uri": paths, "etag": keys, "stored": images})
        pq.write_table(table, folder / name, row_group_size=5)
    return {name: (folder / name).as_uri() for name in ("a", "b")}


def rows_of(*chosen):
    return pa.RecordBatch.from_pydict(
        {
            "path": [f"{file[-1]}{row}" for file, row in chosen],
            "content_hash": [str(row // 2) for _, row in chosen],
            FILE: [file for file, _ in chosen],
        }
    )


@pytest.mark.parametrize("batch_bytes", [1, 1 << 20])
def test_the_images_are_those_of_the_chosen_rows(files, batch_bytes):
    chosen = [(files["a"], row) for row in (22, 4, 0, 17, 5)] + [(files["b"], row) for row in range(3, 9)]
    given = list(ImageFiles("stored", KEYS, {}, batch_bytes).with_images([rows_of(*chosen[:7]), rows_of(*chosen[7:])]))
    assert [name for batch in given for name in batch.schema.names[:1]] == ["path"] * len(given)
    read = [row for batch in given for row in batch.to_pylist()]
    assert [row["image"] for row in read] == [row["path"].encode() * 100 for row in read]
    assert sorted(row["path"] for row in read) == sorted(f"{file[-1]}{row}" for file, row in chosen)
    assert batch_bytes > 1 or {batch.num_rows for batch in given} == {1}


def test_a_file_without_the_column_has_null_images(files):
    (given,) = ImageFiles("later", KEYS, {}, 1 << 20).with_images([rows_of((files["a"], 1), (files["a"], 9))])
    assert given.column("image").to_pylist() == [None, None]


def test_a_file_that_is_gone_is_named(files):
    with pytest.raises(VersionFilesMissingError, match=r"day=1 ä%20/c: this data file is gone"):
        list(ImageFiles("stored", KEYS, {}, 1 << 20).with_images([rows_of((files["a"][:-1] + "c", 1))]))


def test_rows_that_cannot_be_told_apart_need_a_key_and_rows_that_are_not_there_are_named(files, tmp_path):
    images = pa.array([b"one", b"two"], pa.binary())
    pq.write_table(pa.table({"uri": ["a1", "a1"], "etag": [0, 1], "stored": images}), tmp_path / "a")
    rows = rows_of(((tmp_path / "a").as_uri(), 1))
    with pytest.raises(NotAnImageTableError, match=r"2 rows have the path 'a1'.*--key"):
        list(ImageFiles("stored", {"path": "uri"}, {}, 1 << 20).with_images([rows]))
    (given,) = ImageFiles("stored", KEYS, {}, 1 << 20).with_images([rows])
    assert given.column("image").to_pylist() == [b"one"]
    with pytest.raises(DataFileError, match="has no row with path, content_hash = "):
        list(ImageFiles("stored", KEYS, {}, 1 << 20).with_images([rows_of((files["a"], ROWS))]))


def test_there_are_as_many_tasks_as_the_work_is_worth():
    assert [tasks_for(rows, 299 * 299, 4) for rows in (0, 40, 60, 100, 10_000)] == [1, 1, 2, 3, 4]
