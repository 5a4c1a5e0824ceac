"""The fixed cost of actions on a table, counted in Spark jobs."""

from __future__ import annotations

import json
import re

import pytest
from etl_pictures import write_image
from spark_jobs import Jobs, jobs_of

from lakelens import ImageTable

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

# A MERGE of Delta 4 is up to 13 jobs, by its own settings; lakelens sets those that save some.
MERGE = 13
VOC_XML = (
    "<annotation><filename>{name}.jpg</filename><size><width>60</width><height>40</height></size><object>"
    "<name>cat</name><bndbox><xmin>2</xmin><ymin>2</ymin><xmax>20</xmax><ymax>20</ymax></bndbox></object></annotation>"
)


def counted(jobs: Jobs) -> list[str]:
    """Leaves out what is asked once: Delta's log of a version by whoever reads it first, a session's workers."""
    return [site for site in jobs.sites if "Compute snapshot" not in site and "spark/port.py" not in site]


def write_folders(root, numbers):
    for number in numbers:
        write_image(root / f"class {number % 2}" / f"{number}.jpg", seed=number)
    (root / "class 0" / "notes.txt").write_text("ignored, and counted without a job")
    return {"source": root}


def write_manifest(root, numbers):
    for number in numbers:
        write_image(root / f"{number}.jpg", seed=number)
    lines = [f"{path.name},class {int(path.stem) % 2}\n" for path in sorted(root.glob("*.jpg"))]
    (root / "images.csv").write_text("path,label\n" + "".join(lines))
    return {"source": root / "images.csv", "layout": "manifest"}


def write_coco(root, numbers):
    for number in numbers:
        write_image(root / "train2017" / f"{number}.jpg", seed=number)
    files = sorted((root / "train2017").iterdir())
    images = [{"id": i, "file_name": file.name, "width": 60, "height": 40} for i, file in enumerate(files)]
    boxes = [{"id": i, "image_id": i, "category_id": 1, "bbox": [2, 2, 20, 20]} for i in range(len(files))]
    (root / "annotations").mkdir(exist_ok=True)
    document = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "cat"}]}
    (root / "annotations" / "instances_train2017.json").write_text(json.dumps(document))
    return {"source": root, "layout": "coco"}


def write_voc(root, numbers):
    (root / "Annotations").mkdir(parents=True, exist_ok=True)
    for number in numbers:
        write_image(root / "JPEGImages" / f"{number}.jpg", seed=number)
        (root / "Annotations" / f"{number}.xml").write_text(VOC_XML.format(name=number))
    return {"source": root, "layout": "voc"}


def frame_of(spark, root, numbers):
    for number in numbers:
        write_image(root / f"{number}.jpg", seed=number)
    rows = [(str(path), "cat") for path in sorted(root.glob("*.jpg"))]
    return {"source": spark.createDataFrame(rows, "path string, label_name string")}


def test_rows_that_bring_their_bytes_cost_a_job_more_to_be_found_once(spark, tmp_path):
    rows = [(f"img/{number}", write_image(tmp_path / "x.jpg", seed=number), "cat") for number in range(3)]
    frame = spark.createDataFrame(rows, "path string, content binary, label_name string")
    table = ImageTable(spark, tmp_path / "t")
    with jobs_of(spark) as first:
        assert table.ingest(frame, size=32).stored == 3
    with jobs_of(spark) as nothing:
        assert table.ingest(frame).skipped == 3
    assert len(counted(first)) <= 6, str(first)
    assert len(counted(nothing)) <= 2, str(nothing)


@pytest.fixture(scope="module")
def story(spark, tmp_path_factory):
    """A table of class folders through each action, with its result and its jobs.

    A class folder gets another name after the first ingest. Then another source brings the class back, an image
    changes and one goes; rows are deleted, a class is renamed, and the first version is restored.
    """
    root = tmp_path_factory.mktemp("jobs")
    source, other = root / "source", root / "other"
    table = ImageTable(spark, root / "t")
    told = {}

    def act(name, action):
        with jobs_of(spark) as jobs:
            told[name] = (action(), jobs)

    act("nothing there", lambda: table.preview(write_folders(source, range(8))["source"]))
    act("first", lambda: table.ingest(source, size=32))
    (source / "class 1").rename(source / "class 2")
    act("new", lambda: table.ingest(source))
    act("known", lambda: table.ingest(source))
    write_image(other / "class 1" / "9.jpg", seed=9)
    act("of another source", lambda: table.ingest(other))
    write_image(source / "class 0" / "0.jpg", seed=100)
    (source / "class 2" / "1.jpg").unlink()
    act("changed", lambda: table.ingest(source, delete_missing=True))
    act("deleted", lambda: table.delete("path LIKE '%/2.jpg'"))
    act("renamed", lambda: table.rename_class("class 0", "even"))
    act("restored", lambda: table.restore(0))
    return told


@pytest.mark.parametrize(
    ("action", "most"),
    [("first", 4), ("new", 4), ("known", 2), ("changed", MERGE + 3), ("deleted", MERGE + 1), ("renamed", MERGE + 1)],
)
def test_an_action_on_a_table_of_class_folders_is_few_jobs_and_changes_are_one_merge(story, action, most):
    _, jobs = story[action]
    assert len(counted(jobs)) <= most, str(jobs)


def test_each_action_has_done_what_its_jobs_are_counted_for(story):
    results = {name: result for name, (result, _) in story.items()}
    assert [results[name].stored for name in ("first", "new", "known")] == [8, 4, 0]
    assert (results["changed"].changed, results["changed"].removed) == (1, 5)
    assert results["deleted"].deleted == {"class 0": 1}
    assert results["renamed"].rows == 3


def test_a_restore_is_a_job_more_than_deltas_own(story):
    _, jobs = story["restored"]
    own = [job for job in jobs.sites if not re.search("Restore|HDFSLogStore|recordDeltaOperation", job)]
    assert len(own) <= 1, str(jobs)


@pytest.mark.parametrize(("write", "more"), [(write_manifest, 0), (frame_of, 0), (write_voc, 1)])
def test_other_sources_are_planned_by_the_jobs_of_class_folders_and_one_that_finds_annotations(
    story, spark, tmp_path, write, more
):
    arguments = frame_of(spark, tmp_path, range(4)) if write is frame_of else write(tmp_path / "source", range(4))
    with jobs_of(spark) as jobs:
        assert ImageTable(spark, tmp_path / "t").preview(**arguments).new == 4
    assert len(counted(jobs)) <= len(counted(story["nothing there"][1])) + more, str(jobs)


def test_coco_is_two_jobs_more_of_which_one_finds_the_folders_of_its_images(spark, tmp_path):
    table, arguments = ImageTable(spark, tmp_path / "t"), write_coco(tmp_path / "source", range(4))
    with jobs_of(spark) as first:
        assert table.ingest(**arguments, size=32).stored == 4
    with jobs_of(spark) as nothing:
        assert table.ingest(**arguments).skipped == 4
    assert len(counted(first)) <= 6, str(first)
    assert len(counted(nothing)) <= 4, str(nothing)


def test_nothing_is_asked_of_a_table_that_does_not_exist(story):
    preview, jobs = story["nothing there"]
    assert preview.new == 8
    assert not [job for job in jobs.sites if "Filtering files" in job], str(jobs)


def test_a_class_that_the_source_lost_is_reported_until_its_rows_are_gone(story):
    results = {name: result for name, (result, _) in story.items()}
    assert (results["new"].vanished_classes, results["new"].new_classes) == (("class 1",), ("class 2",))
    assert [results[name].vanished_classes for name in ("first", "known")] == [(), ("class 1",)]
    # The class is also one of another source.
    assert [results[name].vanished_classes for name in ("of another source", "changed")] == [(), ()]
