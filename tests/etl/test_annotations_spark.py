"""Rules of annotations on their way through a real two-executor Spark: one row per image, nothing lost."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakelens.errors import AnnotationFileError, SourceNotFoundError
from lakelens.etl import annotation_frames
from lakelens.etl import annotations as an
from lakelens.etl.annotation_frames import coco_annotations, manifest_annotations, match_images
from lakelens.etl.annotations import annotation_of
from lakelens.etl.voc_frames import voc_annotations
from lakelens.etl.walk import local_uri

pytestmark = pytest.mark.spark

OBJECT = "<object><name>{}</name><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>3</xmax><ymax>4</ymax></bndbox></object>"


def records(frame):
    """Collects a small frame as records by path."""
    rows = [annotation_of(row.asDict(recursive=True)) for row in frame.collect()]
    assert len({row.path for row in rows}) == len(rows)
    return {row.path: row for row in rows}


def reasons(annotation):
    return [found.reason for found in annotation.problems]


def uri(path):
    return local_uri(str(path).encode())


def listed(spark, *paths):
    return spark.createDataFrame([(uri(path),) for path in paths], "path STRING")


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_a_voc_folder_matches_images_annotations_and_lists(spark, tmp_path):
    root = tmp_path / "VOC dev%kit"
    for name in ("a ü", "b", "c", "d"):
        write(root / "JPEGImages" / f"{name}.jpg", b"")
    write(root / "Annotations" / "a ü.xml", f"<annotation>{OBJECT.format('cat')}</annotation>")
    write(root / "Annotations" / "b.xml", f"<annotation>{OBJECT.format('dog') * 2}</annotation>")
    write(root / "Annotations" / "c.xml", "<annotation>")
    write(root / "Annotations" / "gone.xml", "<annotation/>")
    write(root / "ImageSets" / "Main" / "train.txt", "a ü\nb\n")
    write(root / "ImageSets" / "Main" / "trainval.txt", "b\nc\n")
    write(root / "ImageSets" / "Main" / "val.txt", "b\n")
    write(root / "ImageSets" / "Main" / "cat_test.txt", "c  1\n")
    files = [path for path in sorted(root.rglob("*")) if path.is_file()]
    found = records(voc_annotations(spark, listed(spark, *files), uri(root)))
    by_name = {path.rpartition("/")[2]: record for path, record in found.items()}
    assert set(by_name) == {"a%20%C3%BC.jpg", "b.jpg", "c.jpg", "d.jpg", "gone.xml"}
    assert [box.corners for box in by_name["b.jpg"].boxes] == [(0, 1, 3, 4)] * 2
    assert reasons(by_name["b.jpg"]) == [an.SPLIT_CONFLICT]
    assert (reasons(by_name["c.jpg"]), by_name["c.jpg"].split) == ([an.ANNOTATION_UNREADABLE], "train")
    assert reasons(by_name["d.jpg"]) == [an.ANNOTATION_MISSING]
    assert reasons(by_name["gone.xml"]) == [an.IMAGE_MISSING]
    # A line of a list is one word, so that the name with a blank is in none.
    assert (by_name["a%20%C3%BC.jpg"].boxes[0].label_name, by_name["a%20%C3%BC.jpg"].split) == ("cat", None)


def test_a_coco_file_is_read_by_a_worker_and_matched_with_the_listing(spark, tmp_path, monkeypatch):
    content = {
        "images": [{"id": i, "file_name": f"{i}.jpg", "width": 9, "height": 8} for i in range(3)],
        "annotations": [{"image_id": 0, "category_id": 1, "bbox": [1, 2, 3, 4]}, {"image_id": 77, "category_id": 1}],
        "categories": [{"id": 1, "name": "cat"}],
    }
    location = write(tmp_path / "a" / "instances.json", json.dumps(content))
    frame = coco_annotations(spark, str(location), str(tmp_path / "b"), split="val")
    matched = records(match_images(frame, listed(spark, *(tmp_path / "b" / f"{i}.jpg" for i in (0, 1, 5)))))
    folder = uri(tmp_path / "b")
    assert matched[f"{folder}/0.jpg"].boxes[0].corners == (1, 2, 4, 6)
    assert (matched[f"{folder}/0.jpg"].split, matched[f"{folder}/0.jpg"].size) == ("validation", (9, 8))
    assert matched[f"{folder}/1.jpg"].problems == ()
    assert reasons(matched[f"{folder}/2.jpg"]) == [an.IMAGE_MISSING]
    assert reasons(matched[f"{folder}/5.jpg"]) == [an.ANNOTATION_MISSING]
    assert reasons(matched[f"{location}#image_id=77"]) == [an.IMAGE_MISSING]
    assert len(matched) == 5
    # The same file behind a URI goes through the driver.
    monkeypatch.setattr(annotation_frames, "absolute", lambda place: place)
    by_driver = coco_annotations(spark, uri(location), str(tmp_path / "b"), split="val")
    assert {row.path: row.boxes for row in records(by_driver).values() if "#" not in row.path} == {
        row.path: row.boxes for row in records(frame).values() if "#" not in row.path
    }


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_manifest_reads_the_same_in_every_format(spark, tmp_path, kind):
    rows = [
        {"path": "x/a.jpg", "label": "cat", "split": "train"},
        {"path": "x/a.jpg", "label": "cat", "split": "train"},
        {"path": "x/b.jpg", "label": "cat", "split": None},
        {"path": "x/b.jpg", "label": "dog", "split": None},
        {"path": "", "label": "cat", "split": None},
        {"path": "x\\c.jpg", "label": None, "split": "val"},
    ]
    location = tmp_path / f"labels [1].{kind}"
    if kind == "csv":
        lines = [",".join(f'"{row[name] or ""}"' for name in row) for row in rows]
        write(location, "\ufeffpath,label,split\r\n" + "\r\n".join(lines))
    elif kind == "jsonl":
        write(location, "\n".join(map(json.dumps, rows)))
    else:
        pq.write_table(pa.Table.from_pylist(rows), location)
    found = records(manifest_annotations(spark, str(location)))
    lost = [record for record in found.values() if reasons(record) == [an.PATH_UNUSABLE]]
    folder = uri(tmp_path)
    assert len(found) == 4
    assert len(lost) == 1
    a, b, c = (found[f"{folder}/x/{name}.jpg"] for name in "abc")
    assert (a.label_name, a.split, reasons(a)) == ("cat", "train", [an.ANNOTATION_REPEATED])
    assert reasons(b) == [an.LABEL_CONFLICT]
    assert (c.label_name, c.split) == (None, "validation")


def test_a_manifest_resolves_paths_against_a_given_root(spark, tmp_path):
    location = write(tmp_path / "m.csv", "path,label\n1.jpg,cat\n")
    assert set(records(manifest_annotations(spark, str(location), "/images/here"))) == {"file:///images/here/1.jpg"}


def test_a_missing_file_and_a_missing_column_are_said_before_any_image_is_read(spark, tmp_path):
    with pytest.raises(SourceNotFoundError, match="does not exist"):
        coco_annotations(spark, str(tmp_path / "none.json"), str(tmp_path))
    pq.write_table(pa.table({"label": ["cat"]}), tmp_path / "m.parquet")
    with pytest.raises(AnnotationFileError, match="no column 'path'"):
        manifest_annotations(spark, str(tmp_path / "m.parquet"))
    for name, content, message in (
        ("m.csv", "file,label\n", r"m\.csv has no column 'path' \(its columns: 'file', 'label'\)"),
        ("m.jsonl", '{"label": "cat"}\n', "no column 'path'"),
    ):
        location = write(tmp_path / name, content)
        with pytest.raises(AnnotationFileError, match=message):
            manifest_annotations(spark, str(location))
    location = write(tmp_path / "x.json", '{"images": [')
    with pytest.raises(AnnotationFileError, match=r"x\.json is not a COCO instances file"):
        coco_annotations(spark, str(location), "/images")
