"""Rules of a landing folder that is ingested as a stream."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from delta_rows import delta_rows
from etl_pictures import write_image

from lakelens import ImageTable
from lakelens.errors import InvalidArgumentError
from lakelens.etl.ingest.results import StreamResult

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

BATCH = 10


def stream(spark, place: Path, source: Path, on_batch=None, **options) -> StreamResult:
    table = ImageTable(spark, place)
    result = table.ingest_stream(source, size=16, on_batch=on_batch, **{"max_files": BATCH, **options})
    assert result.rows_in == result.stored + result.quarantined + result.skipped
    return result


@pytest.fixture(scope="module")
def landing(spark, tmp_path_factory):
    """A landing folder through three calls: what had come, nothing new, and what came later.

    After the first batch another writer adds a row.
    """
    root = tmp_path_factory.mktemp("landing")
    source, other = root / "landing", root / "other"
    for number in range(10):
        write_image(source / "cat" / f"{number}.jpg", seed=number)
        write_image(source / "dog" / f"{number}.jpg", seed=100 + number)
    (source / "cat" / "broken.jpg").write_text("no image")
    write_image(other / "cow" / "0.jpg", seed=500)
    table = ImageTable(spark, root / "t")
    told: list[int] = []

    others: list[int] = []

    def write_between(result) -> None:
        told.append(result.version)
        if len(told) == 1:
            others.append(table.ingest(other).version)

    first = stream(spark, root / "t", source, write_between)
    again = stream(spark, root / "t", source)
    write_image(source / "cat" / "0.jpg", seed=999)
    write_image(source / "cat" / "broken.jpg", seed=998)
    write_image(source / "emu" / "0.jpg", seed=997)
    later = stream(spark, root / "t", source)
    return {"table": table, "told": told, "others": others[0], "first": first, "again": again, "later": later}


def test_each_batch_is_one_commit_of_at_most_so_many_files(landing):
    first, others = landing["first"], landing["others"]
    assert [(batch.version, batch.stored + batch.quarantined) for batch in first.batches] == [
        (0, 10),
        (others + 1, 10),
        (others + 1, 1) if first.batches[2].quarantined else (others + 2, 1),
    ]
    assert landing["told"] == [batch.version for batch in first.batches]
    assert len(delta_rows(landing["table"].location, 0)) <= BATCH


def test_every_file_of_the_folder_is_stored_once_or_in_quarantine(landing):
    first = landing["first"]
    assert (first.rows_in, first.stored, first.quarantined, first.skipped) == (21, 20, 1, 0)
    assert first.reasons == {"not_an_image": 1}
    assert {batch.vanished_classes for batch in first.batches} == {()}
    paths = Counter(row["path"] for row in delta_rows(landing["table"].location))
    assert (len(paths), set(paths.values())) == (22 + 1, {1})


def test_a_stream_with_nothing_new_commits_nothing(landing):
    again = landing["again"]
    assert (again.batches, again.version, again.skipped) == ((), landing["first"].version, 21)


def test_new_changed_and_mended_files_are_the_next_batch(landing):
    later = landing["later"]
    assert (later.rows_in, later.stored, later.quarantined, later.skipped) == (22, 3, 0, 19)
    assert [batch.changed for batch in later.batches] == [2]
    assert landing["table"].labels() == {"cat": 0, "cow": 1, "dog": 2, "emu": 3}
    assert later.new_classes == ("emu",)


def test_another_writer_between_two_batches_doubles_and_loses_nothing(landing):
    rows = delta_rows(landing["table"].location, landing["first"].version)
    paths = Counter(row["path"] for row in rows)
    assert (len(paths), set(paths.values())) == (20 + 1, {1})
    assert {row["label_name"]: row["label"] for row in rows} == {"cat": 0, "cow": 1, "dog": 2}


def test_an_empty_landing_folder_is_nothing_to_do(spark, tmp_path):
    (tmp_path / "landing").mkdir()
    result = stream(spark, tmp_path / "t", tmp_path / "landing")
    assert (result.version, result.rows_in, result.batches) == (None, 0, ())
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("max_files", [0, -1, 2.5, True, None])
def test_a_batch_without_a_bound_is_refused(spark, tmp_path, max_files):
    with pytest.raises(InvalidArgumentError, match="max_files"):
        stream(spark, tmp_path / "t", tmp_path, max_files=max_files)
