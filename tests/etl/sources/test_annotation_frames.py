"""Rules of annotations on their way through Spark: one row per image, nothing lost."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from problems import reasons

from lakelens.errors import AnnotationFileError, SourceNotFoundError
from lakelens.etl.annotations import record as an
from lakelens.etl.annotations.record import annotation_of
from lakelens.etl.files import local_uri
from lakelens.etl.sources.annotated_folders import coco_annotations
from lakelens.etl.sources.image_rows import manifest_annotations
from lakelens.etl.sources.named_images import annotation_errors
from lakelens.etl.sources.source import Source

pytestmark = pytest.mark.spark

SIDES = ("xmin", "ymin", "xmax", "ymax")


def records(frame):
    """Collects a small frame as records by path."""
    rows = [annotation_of(row.asDict(recursive=True)) for row in frame.collect()]
    assert len({row.path for row in rows}) == len(rows)
    return {row.path: row for row in rows}


def uri(path):
    return local_uri(str(path).encode())


def write_csv(path, rows):
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, ["path", "label", "split"], quoting=csv.QUOTE_ALL, lineterminator="\r\n")
        writer.writeheader()
        writer.writerows(rows)


def write_json_lines(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)))


def write_parquet(path, rows):
    box = pa.struct([("label", pa.string()), *((side, pa.float64()) for side in SIDES)])
    kinds = [("path", pa.string()), ("label", pa.string()), ("split", pa.string()), ("boxes", pa.list_(box))]
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(kinds)), path)


OF_CLASSES = [
    {"path": "x/a.jpg", "label": "cat", "split": "train"},
    {"path": "x/a.jpg", "label": "cat", "split": "train"},
    {"path": "x/b.jpg", "label": "cat", "split": None},
    {"path": "x/b.jpg", "label": "dog", "split": None},
    {"path": "", "label": "cat", "split": None},
    {"path": "x\\c.jpg", "label": None, "split": "val"},
]
OF_BOXES = [
    {
        "path": "images of mine/é%.jpg",
        "split": "val",
        "boxes": [
            {"label": "red", "xmin": 1, "ymin": 2, "xmax": 3.5, "ymax": 4},
            {"label": "blue ü", "xmin": -10, "ymin": 0, "xmax": 500, "ymax": 20},
        ],
    },
    {"path": "plain.png", "split": "test", "boxes": []},
]


@pytest.mark.parametrize(
    ("kind", "writer", "root"),
    [("csv", write_csv, None), ("jsonl", write_json_lines, "/images/here"), ("parquet", write_parquet, None)],
)
def test_a_manifest_of_any_format_says_the_same_against_its_own_folder_or_a_given_root(
    spark, tmp_path, kind, writer, root
):
    location, boxed = tmp_path / f"labels [1].{kind}", kind != "csv"
    writer(location, [*OF_CLASSES, *OF_BOXES] if boxed else OF_CLASSES)
    found = records(manifest_annotations(spark, Source(location, "manifest", images=root)))
    folder = Path(root or tmp_path)
    a, b, c = (found.pop(uri(folder / "x" / f"{name}.jpg")) for name in "abc")
    assert (a.label_name, a.split, reasons(a)) == ("cat", "train", [an.ANNOTATION_REPEATED])
    assert reasons(b) == [an.LABEL_CONFLICT]
    assert (c.label_name, c.split) == (None, "validation")
    if boxed:
        one, plain = (found.pop(uri(folder / row["path"])) for row in OF_BOXES)
        assert (one.label_name, one.split, reasons(one)) == (None, "validation", [])
        corners = [(box.label_name, box.corners) for box in one.boxes]
        assert corners == [("red", (1, 2, 3.5, 4)), ("blue ü", (-10, 0, 500, 20))]
        assert (plain.label_name, plain.boxes, plain.split, reasons(plain)) == (None, (), "test", [])
    assert [reasons(record) for record in found.values()] == [[an.PATH_UNUSABLE]]


def test_a_missing_file_and_a_missing_column_are_said_before_any_image_is_read(spark, tmp_path):
    with pytest.raises(SourceNotFoundError, match="does not exist"):
        coco_annotations(spark, str(tmp_path / "none.json"), str(tmp_path))
    pq.write_table(pa.table({"label": ["cat"]}), tmp_path / "m.parquet")
    with pytest.raises(AnnotationFileError, match="no column 'path'"):
        manifest_annotations(spark, Source(tmp_path / "m.parquet", "manifest"))
    (tmp_path / "m.csv").write_text("file,label\n")
    with pytest.raises(AnnotationFileError, match=r"m\.csv has no column 'path'"), annotation_errors():
        manifest_annotations(spark, Source(tmp_path / "m.csv", "manifest")).count()
