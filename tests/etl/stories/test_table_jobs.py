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
from lakelens.table import Table
from lakelens.table_jobs import TableJob


@pytest.mark.unit
def test_the_result_of_a_key_is_the_one_recorded_first_until_the_job_starts_over(tmp_path):
    keyed = TableJob(Table.of(tmp_path), Job("dag/monday/etl"), {"size": 16})
    assert keyed.result() is None
    keyed.finish({"stored": 3})
    keyed.finish({"stored": 4})
    assert keyed.result() == {"stored": 3}
    assert TableJob(keyed.table, Job("dag/tuesday/etl"), {"size": 16}).result() is None
    with pytest.raises(InvalidArgumentError, match="size was 16 and is 32"):
        TableJob(keyed.table, keyed.job, {"size": 32}).result()
    over = TableJob(keyed.table, Job("dag/monday/etl", takeover=True, from_start=True), {"size": 32})
    assert (over.result(), keyed.result()) == (None, None)
    Path(keyed.location).write_text(json.dumps({"key": "dag/monday/etl"}))
    with pytest.raises(TableError, match=r"the record of job 'dag/monday/etl', is damaged .* remove it"):
        keyed.result()


@pytest.mark.spark
def test_an_ingest_that_has_finished_gives_its_result_again_recorded_or_committed(spark, tmp_path):
    source, options = tmp_path / "photos", {"size": 16, "near_duplicates": True, "job": "dag/monday/etl"}
    for number in range(2):
        write_image(source / "cat" / f"{number}.jpg", seed=number)
    (source / "cat" / "no.jpg").write_bytes(b"no image")
    table = ImageTable(spark, tmp_path / "t")
    first = table.ingest(source, **options)
    assert (first.stored, first.quarantined, first.version) == (2, 1, 0)
    write_image(source / "dog" / "1.jpg", seed=7)
    table.vacuum()
    with jobs_of(spark) as jobs:
        assert table.ingest(source, **options) == first
    assert not jobs
    assert table.ingest(source, **{**options, "job": "dag/tuesday/etl"}).stored == 1
    shutil.rmtree(Path(table.location) / "_lakelens" / "jobs")  # of a job that was killed after its commit
    with pytest.raises(InvalidArgumentError, match=r"recipe_changes\.size was 16 and is 32"):
        table.ingest(source, **{**options, "size": 32})
    assert table.ingest(source, **options) == first
    with jobs_of(spark) as jobs:
        assert table.ingest(source, **options) == first
    assert not jobs
    over = {**options, "job": Job("dag/monday/etl", takeover=True, from_start=True)}
    again = table.ingest(source, **over)
    assert (again.stored, again.skipped, again.version) == (0, 4, 1)
    assert table.ingest(source, **options) == again
    with pytest.raises(InvalidArgumentError, match="a stream resumes where it stopped"):
        table.ingest_stream(source, job="stream")
