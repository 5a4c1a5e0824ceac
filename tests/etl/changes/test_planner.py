"""Rules of plans as Spark makes them, on real tables and folders."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from delta_rows import delta_rows
from etl_pictures import write_image
from made_tables import append_as_another, make_table
from profile_tables import gathered
from spark_jobs import jobs_of

import lakelens
from lakelens import ImageTable
from lakelens.errors import SourceNotFoundError
from lakelens.etl.changes.plan import Plan
from lakelens.etl.changes.planner import make_plan
from lakelens.etl.changes.rules import PlanRules
from lakelens.etl.files import Wanted
from lakelens.etl.ingest.prepare import list_source
from lakelens.etl.model import schema
from lakelens.etl.profile.findings import find_findings
from lakelens.etl.quarantine import COLUMNS
from lakelens.etl.sources.folders import list_share
from lakelens.etl.sources.source import FOLDER_LISTING, Listing, Source, completed, raise_refusal
from lakelens.etl.spark.writing_session import local_frame, writing_session

pytestmark = pytest.mark.spark


def first_plan(session, listing: Listing) -> Plan:
    """Plans an ingest into a table that does not exist yet."""
    stored, bad = (local_frame(session, [], schema.ddl_of(kind)) for kind in (schema.IMAGE_TABLE, schema.QUARANTINE))
    return make_plan(listing, stored, bad, bad.select(*COLUMNS), PlanRules())


def test_what_tasks_see_in_the_source_folder_arrives_in_the_plan(spark, tmp_path):
    """One task has an empty mount: its rows look like those of a folder that was emptied."""
    session, batches = writing_session(spark), []
    write_image(tmp_path / "cat" / "1.jpg")
    for task in range(2):
        one = pa.record_batch([pa.array([task], pa.int64())], ["id"])
        batches += list_share([one], os.fsencode(tmp_path), 2, Wanted("class_folders"))
        shutil.rmtree(tmp_path / "cat", ignore_errors=True)
    rows = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    plan = first_plan(session, Listing(completed(local_frame(session, rows, schema.ddl_of(FOLDER_LISTING)))))
    with pytest.raises(SourceNotFoundError, match="some executors see"):
        raise_refusal(plan.seen)
    plan.release()


def test_parts_of_a_plan_share_no_file_although_spark_computes_it_again(spark, tmp_path):
    session = writing_session(spark)
    for number in range(10, 20):
        write_image(tmp_path / "cat" / f"{number}.jpg", seed=number)
    plan, parts = first_plan(session, list_source(session, Source(tmp_path))), []
    for part in plan.batches(4):
        parts.append([row.path for row in part.work_files().collect()])
        write_image(tmp_path / "cat" / f"0{len(parts)}.jpg", seed=1)
        os.utime(tmp_path / "cat" / f"0{len(parts)}.jpg", (1_000_000_000, 1_000_000_000))
        session.catalog.clearCache()  # an executor that is lost takes cached rows with it
    read = Counter(path for part in parts for path in part)
    assert [len(part) for part in parts] == [4, 4, 2]
    assert set(read.values()) == {1}


def rows_by_path(table):
    return sorted(delta_rows(table.location), key=lambda row: row["path"])


def test_rows_that_another_writer_has_stored_again_are_counted_without_a_job_and_repaired(spark, tmp_path):
    source = tmp_path / "source"
    for number in range(4):
        write_image(source / ("cat", "dog")[number % 2] / f"{number}.jpg", seed=number)
    table = ImageTable(spark, make_table(tmp_path / "t", source, size=16))
    with jobs_of(spark) as usual:
        assert table.ingest(source).doubled == 0
    rows = rows_by_path(table)
    elsewhere = {**rows[3], "path": "file:///x/y.jpg"}
    append_as_another(table, [*rows[:2], rows[0], elsewhere, elsewhere])  # one row thrice; one of another source
    with jobs_of(spark) as doubled:
        assert (table.ingest(source).doubled, table.version) == (4, 1)
    assert len(doubled) <= len(usual), str(doubled)
    assert any(
        "4 images stored again by another writer" in text
        for _, text in find_findings(gathered(table.location, near_duplicates=False))
    )
    # One more row of a path, later than the others, and rows with the number of another class.
    later = rows[2]["source_modified"] + timedelta(days=1)
    append_as_another(table, [{**rows[2], "label": 0, "source_modified": later}, {**elsewhere, "label": 0}])
    found = table.repair()
    assert (found.committed, len(found.findings)) == (True, 2)
    assert re.fullmatch(r"6 rows too many of 4 paths, such as file:///.*\.jpg", found.findings[-1])
    repaired = rows_by_path(table)
    assert [row["path"] for row in repaired] == sorted([*(row["path"] for row in rows), elsewhere["path"]])
    assert {(row["label_name"], row["label"]) for row in repaired} == {("cat", 0), ("dog", 1)}
    in_utc = later.replace(tzinfo=None)  # as Spark's writer leaves it
    assert sum(row["source_modified"].replace(tzinfo=None) == in_utc for row in repaired) == 1
    assert table.class_counts() == table.history(1)[0].class_counts == {"cat": 2, "dog": 3}
    assert table.repair().committed is False


@pytest.fixture(scope="module")
def planned(spark, tmp_path_factory):
    """A table of a folder that changes: what it held, a preview and an ingest.

    One file was beyond the limit of the first ingest. At the end one more file has come, and a stored one is gone.
    """
    root = tmp_path_factory.mktemp("planned")
    source = root / "source"
    for name, first, count in (("cat", 0, 4), ("dog", 1000, 3)):
        for number in range(count):
            write_image(source / name / f"{number:04d}.jpg", seed=first + number)
    for name in ("text.jpg", "leaving.jpg"):
        (source / "cat" / name).write_text("this is not an image")
    write_image(source / "cat" / "large.jpg", width=64, height=64)
    table = ImageTable(spark, make_table(root / "table", source, lakelens.Limits(max_pixels=3000), size=16))
    made = {"source": source, "table": table, "first": table.quarantine()}
    write_image(source / "cat" / "0000.jpg", seed=999)
    os.utime(source / "cat" / "0001.jpg", (1_600_000_000, 1_600_000_000))
    (source / "cat" / "leaving.jpg").unlink()
    (source / "dog").rename(source / "DOG")
    shutil.copy(source / "cat" / "0002.jpg", source / "DOG" / "copy.jpg")
    made["preview"] = table.preview(source, delete_missing=True, retry_quarantine=True)
    made["result"] = table.ingest(source, delete_missing=True, retry_quarantine=True)
    made["rows"], made["bad"] = delta_rows(table.location), table.quarantine().files
    (source / "cat" / "text.jpg").unlink()
    made["again"] = table.ingest(source, delete_missing=True)
    write_image(source / "cat" / "late.jpg", seed=5)
    (source / "DOG" / "copy.jpg").unlink()
    return made


def test_new_changed_and_gone_files_of_a_folder_are_one_commit(planned):
    result, rows = planned["result"], planned["rows"]
    assert (result.stored, result.changed, result.removed, result.skipped) == (6, 3, 4, 3)
    assert (result.committed, result.version) == (True, planned["table"].version)
    assert Counter(row["batch_id"] == result.batch_id for row in rows) == {True: 6, False: 3}


def test_files_in_quarantine_are_read_again_on_request_and_leave_it_when_the_gone_are_to_be_removed(planned):
    assert planned["first"].reasons == {"too_many_pixels": 1, "not_an_image": 2}
    assert planned["result"].reasons == {"not_an_image": 1}
    assert [Path(file.path).name for file in planned["bad"]] == ["text.jpg"]
    assert "large.jpg" in {Path(row["path"]).name for row in planned["rows"]}
    again = planned["again"]
    assert (again.stored, again.gone, again.version) == (0, 1, planned["result"].version)
    assert planned["table"].quarantine().files == ()


def test_a_preview_reports_what_the_ingest_then_does(planned):
    preview, result = planned["preview"], planned["result"]
    assert (preview.new, preview.changed, preview.gone, preview.version) == (4, 3, 4, 0)
    assert (result.changed, result.gone) == (preview.changed, preview.gone)
    assert result.stored + result.quarantined == preview.new + preview.changed
    for found in (preview, result):
        assert (found.new_classes, found.vanished_classes) == (("DOG",), ("dog",))


def test_a_table_with_mapped_columns_is_planned_by_content_and_by_stamp_alike(spark, planned, tmp_path):
    source = planned["source"]
    for folder in ("", "_stamps"):
        shutil.copytree(f"{planned['table'].location}{folder}", tmp_path / f"copy{folder}")
    table = ImageTable(spark, tmp_path / "copy")
    append_as_another(table, rows_by_path(table)[:1])
    mapped = {"columnMapping.mode": "name", "minReaderVersion": "2", "minWriterVersion": "5"}
    properties = ", ".join(f"'delta.{name}' = '{value}'" for name, value in mapped.items())
    spark.sql(f"ALTER TABLE delta.`{table.location}` SET TBLPROPERTIES ({properties})")
    seen = table.preview(source, verify="content")
    assert (seen.new, seen.known, seen.gone, seen.doubled) == (1, 8, 1, 1)
    assert table.preview(source) == seen
