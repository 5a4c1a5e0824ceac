"""Rules of a landing folder that is ingested as a stream."""

from __future__ import annotations

from pathlib import Path

import pytest
from delta_rows import delta_rows
from etl_pictures import write_image
from made_tables import append_as_another

from lakelens import ImageTable
from lakelens.errors import InvalidArgumentError
from lakelens.etl.ingest.results import StreamResult

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

BATCH = 4


def stream(spark, place: Path, source: Path, on_batch=None, **options) -> StreamResult:
    table = ImageTable(spark, place)
    result = table.ingest_stream(source, size=16, on_batch=on_batch, **{"max_files": BATCH, **options})
    assert result.rows_in == result.stored + result.quarantined + result.skipped
    return result


def test_batches_are_commits_of_so_many_files_that_store_each_file_once_on_top_of_others(spark, tmp_path):
    """What has come while another writer adds a row after the first batch; nothing new; files that have changed."""
    source, table = tmp_path / "landing", ImageTable(spark, tmp_path / "t")
    for number in range(4):
        write_image(source / "cat" / f"{number}.jpg", seed=number)
        write_image(source / "dog" / f"{number}.jpg", seed=100 + number)
    (source / "cat" / "broken.jpg").write_text("no image")
    told: list[int] = []

    def write_between(result) -> None:
        told.append(result.version)
        if len(told) == 1:
            row = delta_rows(table.location)[0]
            append_as_another(table, [{**row, "path": "file:///elsewhere/1.jpg", "label_name": "cow", "label": 1}])

    first = stream(spark, tmp_path / "t", source, write_between)
    assert [(batch.version, batch.stored + batch.quarantined) for batch in first.batches] == [(0, 4), (2, 4), (3, 1)]
    assert told == [batch.version for batch in first.batches]
    assert len(delta_rows(table.location, 0)) == BATCH
    assert (first.rows_in, first.stored, first.quarantined, first.skipped) == (9, 8, 1, 0)
    assert (first.reasons, first.new_classes) == ({"not_an_image": 1}, ("cat", "dog"))
    assert {batch.vanished_classes for batch in first.batches} == {()}
    rows = delta_rows(table.location)
    assert (len(rows), len({row["path"] for row in rows})) == (8 + 1, 8 + 1)
    assert {row["label_name"]: row["label"] for row in rows} == {"cat": 0, "cow": 1, "dog": 2}
    again = stream(spark, tmp_path / "t", source)
    assert (again.batches, again.version, again.skipped) == ((), first.version, 9)
    for name in ("0", "broken"):
        write_image(source / "cat" / f"{name}.jpg", seed=998)
    later = stream(spark, tmp_path / "t", source)
    assert (later.stored, later.quarantined, later.skipped) == (2, 0, 7)
    assert [batch.changed for batch in later.batches] == [2]


def test_an_empty_landing_folder_is_nothing_to_do(spark, tmp_path):
    (tmp_path / "landing").mkdir()
    result = stream(spark, tmp_path / "t", tmp_path / "landing")
    assert (result.version, result.rows_in, result.batches) == (None, 0, ())
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("max_files", [0, -1, 2.5, True, None])
def test_a_batch_without_a_bound_is_refused(spark, tmp_path, max_files):
    with pytest.raises(InvalidArgumentError, match="max_files"):
        stream(spark, tmp_path / "t", tmp_path, max_files=max_files)
