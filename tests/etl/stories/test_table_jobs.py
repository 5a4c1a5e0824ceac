"""Rules of ingests with the key of a job: a repeat of what has finished does nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from etl_pictures import write_image
from spark_jobs import jobs_of

from lakelens import ImageTable, Job
from lakelens.errors import InvalidArgumentError, TableError

pytestmark = pytest.mark.spark


def test_an_ingest_that_has_finished_gives_its_result_again_and_looks_at_no_file(spark, tmp_path):
    source, options = tmp_path / "photos", {"size": 16, "near_duplicates": True, "job": "dag/monday/etl"}
    for number in range(3):
        write_image(source / "cat" / f"{number}.jpg", seed=number)
    table = ImageTable(spark, tmp_path / "t")
    first = table.ingest(source, **options)
    assert first.stored == 3
    write_image(source / "cat" / "3.jpg", seed=3)
    table.vacuum()
    with jobs_of(spark) as jobs:
        assert table.ingest(source, **options) == first
    assert not jobs
    with pytest.raises(InvalidArgumentError, match=r"recipe_changes\.size was 16 and is 32"):
        table.ingest(source, **{**options, "size": 32})
    assert table.ingest(source, **{**options, "job": "dag/tuesday/etl"}).stored == 1
    over = Job("dag/monday/etl", takeover=True, from_start=True)
    again = table.ingest(source, **{**options, "job": over})
    assert (again.stored, again.skipped) == (0, 4)
    assert table.ingest(source, **options) == again
    (record,) = [path for path in Path(table.location).glob("_lakelens/jobs/*.json") if "monday" in path.read_text()]
    record.write_text(json.dumps({"key": "dag/monday/etl"}))
    with pytest.raises(TableError, match=r"the record of job 'dag/monday/etl', is damaged .* remove it"):
        table.ingest(source, **options)


def test_an_ingest_that_was_not_finished_is_done_and_a_stream_takes_no_key(spark, tmp_path):
    source = tmp_path / "photos"
    for number in range(2):
        write_image(source / "cat" / f"{number}.jpg", seed=number)
    (source / "cat" / "no.jpg").write_bytes(b"no image")
    table = ImageTable(spark, tmp_path / "t")
    killed = {"size": 16, "job": "killed before its record"}
    result = table.ingest(source, **killed)
    assert (result.stored, result.quarantined, result.version) == (2, 1, 0)
    table.ingest(source, delete_missing=True, job="another one")
    write_image(source / "dog" / "1.jpg", seed=7)
    table.ingest(source)
    shutil.rmtree(Path(table.location) / "_lakelens" / "jobs")
    with pytest.raises(InvalidArgumentError, match=r"recipe_changes\.size was 16 and is 32"):
        table.ingest(source, **{**killed, "size": 32})
    assert table.ingest(source, **killed) == result
    assert table.ingest(source, **killed) == result
    new = table.ingest(source, **{**killed, "job": Job("killed before its record", takeover=True, from_start=True)})
    assert (new.stored, new.skipped, new.version) == (0, 4, 1)
    with pytest.raises(InvalidArgumentError, match="a stream goes on where it was"):
        table.ingest_stream(source, job="stream")
