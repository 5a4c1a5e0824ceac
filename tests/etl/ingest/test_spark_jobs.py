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


# Files of annotations are found in the listing of these, by one job more; folders of COCO's images by another.
@pytest.mark.parametrize(
    ("write", "more"),
    [(write_folders, 0), (write_manifest, 0), (frame_of, 0), (write_coco, 2), (write_voc, 1)],
    ids=["class folders", "manifest", "DataFrame", "COCO", "VOC"],
)
def test_an_ingest_of_new_files_is_four_jobs_and_one_of_nothing_new_two(spark, tmp_path, write, more):
    table = ImageTable(spark, tmp_path / "t")
    write = (lambda root, numbers: frame_of(spark, root, numbers)) if write is frame_of else write
    arguments = write(tmp_path / "source", range(4))
    with jobs_of(spark) as first:
        assert table.ingest(**arguments, size=32).stored == 4
    with jobs_of(spark) as nothing:
        assert table.ingest(**arguments).skipped == 4
    arguments = write(tmp_path / "source", range(4, 6))
    with jobs_of(spark) as new:
        assert table.ingest(**arguments).stored == 2
    for jobs, most in ((first, 4), (nothing, 2), (new, 4)):
        assert len(counted(jobs)) <= most + more, str(jobs)


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


def test_changes_of_rows_are_one_merge_and_few_jobs_more(spark, tmp_path):
    source = write_folders(tmp_path / "source", range(8))["source"]
    table = ImageTable(spark, tmp_path / "t")
    table.ingest(source, size=32)
    write_image(source / "class 0" / "0.jpg", seed=100)
    (source / "class 1" / "1.jpg").unlink()
    with jobs_of(spark) as changed:
        result = table.ingest(source, delete_missing=True)
    assert (result.changed, result.removed) == (1, 1)
    assert len(counted(changed)) <= MERGE + 3, str(changed)
    with jobs_of(spark) as deleted:
        assert table.delete("path LIKE '%/2.jpg'").committed
    assert len(counted(deleted)) <= MERGE + 1, str(deleted)
    with jobs_of(spark) as renamed:
        assert table.rename_class("class 0", "even").rows == 3
    assert len(counted(renamed)) <= MERGE + 1, str(renamed)
    with jobs_of(spark) as restored:
        table.restore(0)
    own = [job for job in restored.sites if not re.search("Restore|HDFSLogStore|recordDeltaOperation", job)]
    assert len(own) <= 1, str(restored)


def test_nothing_is_asked_of_a_table_that_does_not_exist(spark, tmp_path):
    source = write_folders(tmp_path / "source", range(2))["source"]
    with jobs_of(spark) as jobs:
        assert ImageTable(spark, tmp_path / "t").preview(source).new == 2
    assert not [job for job in jobs.sites if "Filtering files" in job], str(jobs)


def test_a_class_that_the_source_lost_is_reported_until_its_rows_are_gone(spark, tmp_path):
    source = write_folders(tmp_path / "source", range(4))["source"]
    table = ImageTable(spark, tmp_path / "t")
    assert table.ingest(source, size=32).vanished_classes == ()
    (source / "class 1").rename(source / "class 2")
    changed = table.ingest(source)
    assert (changed.vanished_classes, changed.new_classes) == (("class 1",), ("class 2",))
    with jobs_of(spark) as jobs:
        assert table.ingest(source).vanished_classes == ("class 1",)
    assert len(counted(jobs)) <= 2, str(jobs)
    write_image(tmp_path / "other" / "class 1" / "9.jpg", seed=9)
    assert table.ingest(tmp_path / "other").vanished_classes == ()
    assert table.ingest(source).vanished_classes == ()  # the class is also one of another source
