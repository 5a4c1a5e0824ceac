"""Rules of planning: the driver alone and Spark come to the same, whatever is known of a file."""

from __future__ import annotations

import functools
import itertools
import os
import shutil
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from delta_rows import delta_rows
from etl_pictures import write_image

import lakelens
from lakelens import ImageTable
from lakelens.etl.changes import plan_on_driver
from lakelens.etl.changes.ingest_plan import IN_QUARANTINE, STATUS, STORED_CLASS, STORED_HASH, TOUCHED
from lakelens.etl.changes.plan_on_driver import Sides, decide_all, listed_table, plan_files
from lakelens.etl.changes.rules import AGAIN, BAD, STAMP, STORED, decide_after_reading, unique_by_path
from lakelens.etl.changes.spark_plan import make_plan
from lakelens.etl.files.class_folders import ListedFile, Wanted, list_top, list_within
from lakelens.etl.files.driver_limits import TooMuchError
from lakelens.etl.ingest import prepare as preparing
from lakelens.etl.model import schema
from lakelens.etl.quarantine.table import DELETED, RETRIED_REASONS
from lakelens.etl.sources.listing import FOLDER_LISTING_DDL, Listing, completed, folder_batch
from lakelens.etl.sources.sources import Source, list_source
from lakelens.etl.spark.catalog import is_local_to_spark
from lakelens.etl.spark.writing_session import writing_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROOT = "file:///data/images"
_SECOND = 1_000_000
# Lengths, times and contents of which some are equal; a digest of annotations, which class folders have not.
_STAMPS = [(10, 5 * _SECOND), (10, 6 * _SECOND), (11, 5 * _SECOND)]
_LISTED = [None, *[(*stamp, None) for stamp in _STAMPS], (0, 0, "hidden")]
# What only other sources know: a digest of annotations, and one of the content.
_ANNOTATED = [(10, 5 * _SECOND, None, *known) for known in (("said", None), ("said", "h1"), (None, "h2"))]
_STORED = [
    None,
    *[(*stamp, said, "h1", "cat") for stamp in _STAMPS[:2] for said in (None, "said")],
    (10, 5 * _SECOND, None, None, None),
]
_BAD = [
    None,
    *[
        (*stamp, said, reason, None)
        for stamp in _STAMPS[:2]
        for said, reason in ((None, "corrupt"), ("said", "corrupt"), (None, RETRIED_REASONS[0]), (None, None))
    ],
    *[(*_STAMPS[0], None, DELETED, content) for content in ("h1", "h2")],
]
# What could not be looked into, and where a file may have been that is not listed now: below one of these too.
_NOT_LOOKED_INTO = {"locked": "unreadable_folder", "cat/unmounted": "broken_link"}
_SPARED_FOLDERS = [f"{ROOT}-2/cat", f"{ROOT}/locked", f"{ROOT}/cat/unmounted/deep/er"]
# A loop leads to a folder that was looked into.
_LOOPS = {"cat/up": "link_loop"}
_GONE_FOLDERS = [f"{ROOT}/cat", f"{ROOT}/locked-2", f"{ROOT}/cat/up"]
_PLANNED = [schema.PATH, schema.SOURCE_LENGTH, schema.SOURCE_MODIFIED, schema.LABEL_NAME, STATUS, IN_QUARANTINE]
_PLANNED += [STORED_HASH, STORED_CLASS, TOUCHED]
_AGAIN = [None, *[(*stamp, content) for stamp in _STAMPS[:2] for content in ("h1", "h2", None)]]


def every_state(in_source=_LISTED):
    """Every mixture of what a path may be in the source, the table, the quarantine and the stamps; each as rows."""
    passed_over = {**_NOT_LOOKED_INTO, **_LOOPS}
    listed = [ListedFile(f"{ROOT}/{name}", 0, 0, "cat", 7, reason) for name, reason in passed_over.items()]
    known = stored, bad, again = [], [], []
    places = [(there, f"{ROOT}/cat") for there in in_source if there]
    places += [(None, folder) for folder in (*_GONE_FOLDERS, *_SPARED_FOLDERS)]
    for number, ((there, folder), *rows) in enumerate(itertools.product(places, _STORED, _BAD, _AGAIN)):
        path = f"{folder}/{number}.jpg"
        if there:
            length, modified, ignored, *digests = there
            listed.append(ListedFile(path, length, modified, None if ignored else "cat", 7, ignored, *digests))
        for side, row in zip(known, rows, strict=True):
            if row:
                side.append((path, *row))
    return listed, stored, bad, again


def arrow_table(rows, names):
    kinds = [pa.int64() if name in STAMP else pa.string() for name in ("path", *names)]
    columns = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    return pa.table(columns, ["path", *names])


def arrow_sides(stored, bad, again):
    return arrow_table(stored, STORED), arrow_table(bad, BAD), arrow_table(again, AGAIN)


def time_of(microseconds):
    return datetime.fromtimestamp(microseconds / _SECOND, timezone.utc)


@pytest.mark.unit
def test_what_lies_below_a_path_that_could_not_be_looked_into_is_not_gone():
    listed, *known = every_state()
    decided = decide_all(listed_table(listed), *arrow_sides(*known), ROOT)
    rows = decided.select(["path", STATUS]).to_pylist()
    assert {row["path"].rpartition("/")[0] for row in rows if row[STATUS] == "gone"} == set(_GONE_FOLDERS)


@pytest.mark.spark
@pytest.mark.parametrize("in_source", [_LISTED, _ANNOTATED], ids=["class folders", "annotated"])
def test_the_driver_and_spark_find_the_same_to_be_done(spark, in_source):
    listed, *known = every_state(in_source)
    session = writing_session(spark)

    def spark_table(rows, names):
        kinds = {"source_length": "BIGINT", "source_modified": "TIMESTAMP"}
        values = [(path, length, time_of(modified), *others) for path, length, modified, *others in rows]
        ddl = ", ".join(f"{name} {kinds.get(name, 'STRING')}" for name in ("path", *names))
        return session.createDataFrame(values, ddl).coalesce(1)

    batch = folder_batch(listed)
    files = session.range(0, 1, 1, 1).mapInArrow(lambda _: iter([batch]), FOLDER_LISTING_DDL)
    digests = [(file.path, file.annotation_hash, file.content_hash) for file in listed]
    digests = session.createDataFrame(
        digests, f"{schema.PATH} STRING, {schema.ANNOTATION_HASH} STRING, {schema.CONTENT_HASH} STRING"
    )
    files = completed(files.join(digests, schema.PATH))
    by_spark = make_plan(Listing("folder", files, ROOT), *map(spark_table, known, (STORED, BAD, AGAIN)))
    listing = Listing("folder", None if in_source is _LISTED else files, ROOT)
    by_driver = plan_files(session, listing, listed_table(listed), Sides(None, *arrow_sides(*known)))
    try:
        for name in ("counts", "ignored", "class_ranks", "listed_by_class", "lost_by_class"):
            assert getattr(by_driver, name) == getattr(by_spark, name), name
        for name in ("mended_known", "quarantined_work", "quarantined_gone", "touched", "work_bytes", "largest_bytes"):
            assert getattr(by_driver, name) == getattr(by_spark, name), name
        assert by_driver.quarantined_gone
        assert (by_driver.rows_in, by_driver.work) == (by_spark.rows_in, by_spark.work)
        assert len(by_spark.counts) == 4
        more_to_say = "status IS NOT NULL AND (status <> 'known' OR in_quarantine OR touched)"
        one, other = (
            rows_of(
                files=files.select(*_PLANNED),
                work=plan.work_files(),
                quarantined=plan.wrongly_in_quarantine(with_gone=False),
                quarantined_or_gone=plan.wrongly_in_quarantine(with_gone=True),
            )
            for plan, files in ((by_driver, by_driver.files), (by_spark, by_spark.files.where(more_to_say)))
        )
        for name, rows in one.items():
            assert rows == other[name] != Counter(), name
        for statuses in (("new", "changed"), ("gone",)):
            assert sorted(by_driver.paths(*statuses)) == sorted(by_spark.paths(*statuses))
        for status in ("new", "changed", "gone"):
            assert len(by_driver.paths(status, limit=3)) == 3
    finally:
        by_spark.release()


@pytest.mark.spark
def test_parts_of_a_plan_share_no_file_although_spark_computes_it_again(spark, tmp_path):
    session = writing_session(spark)
    for number in range(10, 20):
        write_image(tmp_path / "cat" / f"{number}.jpg", seed=number)
    plan = make_plan(list_source(session, Source(tmp_path)), None, None)
    parts = []
    for part in plan.batches(4):
        parts.append([row.path for row in part.work_files().collect()])
        write_image(tmp_path / "cat" / f"0{len(parts)}.jpg", seed=1)
        os.utime(tmp_path / "cat" / f"0{len(parts)}.jpg", (1_000_000_000, 1_000_000_000))
        session.catalog.clearCache()  # an executor that is lost takes cached rows with it
    read = Counter(path for part in parts for path in part)
    assert [len(part) for part in parts] == [4, 4, 2]
    assert set(read.values()) == {1}


def rows_of(**frames: DataFrame) -> dict[str, Counter[str]]:
    """The rows of each frame, as texts; all by one query."""
    parts = [
        frame.selectExpr(f"'{name}' AS name", "CAST(struct(*) AS STRING) AS row") for name, frame in frames.items()
    ]
    found = {name: Counter() for name in frames}
    for name, row in functools.reduce(lambda one, other: one.union(other), parts).collect():
        found[name][row] += 1
    return found


def no_driver_plan(*_, **_options):
    return None


@contextmanager
def counting_plans_by_spark():
    """Gives a list that is longer by one for each plan that Spark makes."""
    planned = []
    make = preparing.make_plan
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparing, "make_plan", lambda *sides, **options: planned.append(1) or make(*sides, **options))
        yield planned


@pytest.fixture(scope="module")
def planned(spark, tmp_path_factory):
    """A table of a folder that changes, and a copy of it: what each becomes when the one or the other plans.

    One more file has come since, and a stored and a bad one are gone.
    """
    root = tmp_path_factory.mktemp("planned")
    source = root / "source"
    for name, first, count in (("cat", 0, 4), ("dog", 1000, 3)):
        for number in range(count):
            write_image(source / name / f"{number:04d}.jpg", seed=first + number)
    (source / "cat" / "text.jpg").write_text("this is not an image")
    (source / "cat" / "notes.txt").write_text("notes")
    tables = {name: ImageTable(spark, root / name) for name in ("driver", "spark")}
    tables["driver"].ingest(source, size=16)
    for folder in ("", "_quarantine"):
        shutil.copytree(f"{tables['driver'].location}{folder}", f"{tables['spark'].location}{folder}")
    write_image(source / "cat" / "0000.jpg", seed=999)
    os.utime(source / "cat" / "0001.jpg", (1_600_000_000, 1_600_000_000))
    (source / "dog").rename(source / "DOG")
    shutil.copy(source / "cat" / "0002.jpg", source / "DOG" / "copy.jpg")
    outcomes, by_spark = {}, {}
    told = {"source": source, "table": tables["driver"], "outcomes": outcomes, "by_spark": by_spark}
    told["preview"] = tables["driver"].preview(source, removed="delete")
    for name, table in tables.items():
        with pytest.MonkeyPatch.context() as patch, counting_plans_by_spark() as plans:
            if name == "spark":
                patch.setattr(preparing, "plan_on_driver", no_driver_plan)
                patch.setattr(preparing, "plan_listing", no_driver_plan)
            result = table.ingest(source, removed="delete")
        rows = delta_rows(table.location)
        new = sorted((row["path"], row["label"], row["batch_id"] == result.batch_id) for row in rows)
        outcomes[name] = replace(result, batch_id=""), new, table.quarantine().files
        by_spark[name] = len(plans)
    (source / "cat" / "text.jpg").unlink()
    told["again"] = tables["driver"].ingest(source, removed="delete")
    write_image(source / "cat" / "late.jpg", seed=5)
    (source / "DOG" / "copy.jpg").unlink()
    return told


@pytest.mark.spark
def test_an_ingest_does_the_same_whoever_plans_it(planned):
    outcomes = planned["outcomes"]
    assert outcomes["driver"] == outcomes["spark"]
    result, rows, bad = outcomes["driver"]
    assert (result.stored, result.changed, result.removed) == (5, 1, 3)
    assert (result.committed, result.version) == (True, planned["table"].version)
    assert [(rename.old, rename.new) for rename in result.class_changes.renamed] == [("dog", "DOG")]
    assert result.class_changes.conflicts == 1
    assert (len(rows), [is_new for _, _, is_new in rows].count(True)) == (8, 5)
    assert [Path(file.path).name for file in bad] == ["text.jpg"]


@pytest.mark.spark
def test_a_bad_file_that_is_gone_leaves_the_quarantine_when_the_gone_are_to_be_removed(planned):
    again, (result, _, _) = planned["again"], planned["outcomes"]["driver"]
    assert (again.stored, again.skipped, again.gone, again.version) == (0, 8, 1, result.version)
    assert planned["table"].quarantine().files == ()


@pytest.mark.spark
def test_a_preview_tells_what_the_ingest_then_does(planned):
    preview, (result, _, _) = planned["preview"], planned["outcomes"]["driver"]
    assert (preview.new, preview.changed, preview.gone, preview.version) == (4, 1, 3, 0)
    assert (result.stored, result.changed, result.gone) == (
        preview.new + preview.changed,
        preview.changed,
        preview.gone,
    )
    assert (preview.new_classes, preview.vanished_classes) == (result.new_classes, result.class_changes.vanished)


@pytest.mark.spark
def test_what_the_driver_should_not_read_alone_is_planned_by_spark(spark, planned, tmp_path, monkeypatch):
    assert planned["by_spark"] == {"driver": 0, "spark": 1}
    source = planned["source"]
    for folder in ("", "_stamps"):
        shutil.copytree(f"{planned['table'].location}{folder}", tmp_path / f"copy{folder}")
    table = ImageTable(spark, tmp_path / "copy")
    with counting_plans_by_spark() as plans:
        seen = table.preview(source, verify="content")
        assert (seen.new, seen.known, seen.gone, len(plans)) == (1, 7, 1, 1)
        assert (table.preview(source), len(plans)) == (seen, 1)
        # A table with mapped columns has other names in its files.
        mapped = {"columnMapping.mode": "name", "minReaderVersion": "2", "minWriterVersion": "5"}
        properties = ", ".join(f"'delta.{name}' = '{value}'" for name, value in mapped.items())
        spark.sql(f"ALTER TABLE delta.`{table.location}` SET TBLPROPERTIES ({properties})")
        result = table.ingest(source)
        assert (result.stored, result.skipped, len(plans)) == (1, 7, 2)
        # Many new files travel to Spark's tasks from its own listing.
        monkeypatch.setattr(plan_on_driver, "MOST_FILES_TO_SEND", 3)
        assert ImageTable(spark, tmp_path / "another").preview(source).new == 8
        assert len(plans) == 3


@pytest.mark.spark
def test_a_folder_of_the_drivers_own_is_not_taken_for_one_of_sparks_file_system(spark, tmp_path):
    session = spark.newSession()
    assert is_local_to_spark(session, str(tmp_path / "with space é%"))
    assert is_local_to_spark(session, f"file:{tmp_path}")
    session.conf.set("fs.defaultFS", "hdfs://nowhere:1/")
    assert not is_local_to_spark(session, str(tmp_path))
    assert not is_local_to_spark(session, "nowhere://bucket/table")


@pytest.mark.unit
def test_of_several_rows_of_one_path_the_largest_counts():
    rows = pa.table({"path": ["b", "a", "b", "a"], "size": [2, None, 3, 1], "name": ["x", "z", None, "y"]})
    assert unique_by_path(rows).to_pylist() == [
        {"path": "a", "size": 1, "name": "y"},
        {"path": "b", "size": 3, "name": None},
    ]
    once = rows.slice(0, 2)
    assert unique_by_path(once) is once


@pytest.mark.spark
@pytest.mark.parametrize("planner", ["driver", "spark"])
def test_files_in_quarantine_are_read_again_on_request_whoever_plans_it(spark, tmp_path, monkeypatch, planner):
    source = tmp_path / "source" / "cat"
    for name, side in (("small", 8), ("large", 64)):
        write_image(source / f"{name}.png", width=side, height=side)
    (source / "text.png").write_text("this is not an image")
    write_image(source / "deleted.png", seed=3, width=16)
    if planner == "spark":
        monkeypatch.setattr(preparing, "plan_on_driver", no_driver_plan)
        monkeypatch.setattr(preparing, "plan_listing", no_driver_plan)
    table = ImageTable(spark, tmp_path / "table")
    first = table.ingest(source.parent, size=8, limits=lakelens.Limits(max_pixels=3000))
    assert (first.stored, first.reasons) == (2, {"too_many_pixels": 1, "not_an_image": 1})
    table.delete("path LIKE '%deleted.png'")
    assert table.ingest(source.parent).skipped == 4
    again = table.ingest(source.parent, retry_quarantine=True)
    assert (again.stored, again.skipped, again.reasons) == (1, 2, {"not_an_image": 1})
    assert sorted(Path(file.path).name for file in table.quarantine().files) == ["deleted.png", "text.png"]
    assert sorted(Path(row["path"]).name for row in delta_rows(table.location)) == ["large.png", "small.png"]


@pytest.mark.unit
def test_a_deleted_file_stays_out_until_its_content_changes():
    path = f"{ROOT}/cat/1.jpg"
    deleted = arrow_table([(path, *_STAMPS[0], None, DELETED, "h1")], BAD)
    stored = arrow_table([(f"{ROOT}/cat/2.jpg", *_STAMPS[0], None, "h9", "cat")], STORED)

    def decided(*stamps, again="h1"):
        listed = listed_table([ListedFile(path, *stamp, "cat", 7, None) for stamp in stamps])
        known_again = arrow_table([(path, *_STAMPS[1], again)], AGAIN)
        found = decide_all(listed, stored, deleted, known_again, ROOT)
        return found.filter(pc.equal(found.column("path"), path))

    def outcome(rows):
        return [(row[STATUS], row[IN_QUARANTINE], row[TOUCHED]) for row in rows.to_pylist()]

    assert outcome(decided(_STAMPS[0])) == [("known", False, False)]
    assert outcome(decided(_STAMPS[1])) == [("known", False, False)]
    assert outcome(decided(_STAMPS[1], again="h2")) == [("changed", True, False)]
    assert decided().num_rows == 0  # and the quarantine keeps it
    other = decided(_STAMPS[2])
    assert outcome(other) == [("changed", True, False)]
    contents = {name: pa.chunked_array([pa.array([name])]) for name in ("h1", "h2")}
    assert outcome(decide_after_reading(other, contents["h1"])) == [("known", False, True)]
    assert outcome(decide_after_reading(other, contents["h2"])) == [("changed", True, False)]
    assert outcome(decide_after_reading(decided(_STAMPS[0]), contents["h2"])) == [("changed", True, False)]


@pytest.mark.unit
def test_a_folder_that_is_large_or_slow_to_list_is_not_listed_by_the_driver_alone(class_folders):
    root, wanted = os.fsencode(class_folders(cat=3, dog=2)), Wanted("class_folders")
    names = list_top(root).names
    assert len(list_within(root, names, wanted, most=5, seconds=60)) == 5
    with pytest.raises(TooMuchError):
        list_within(root, names, wanted, most=4, seconds=60)
    for number in range(1000):
        (Path(os.fsdecode(root)) / "cat" / f"{number}.txt").touch()
    with pytest.raises(TooMuchError):
        list_within(root, names, wanted, most=10_000, seconds=0.0)
