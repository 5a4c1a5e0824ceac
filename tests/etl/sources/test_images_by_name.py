"""An image that is not where its annotation says is found by its name, if that can only mean one."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote

import pytest
from etl_pictures import write_image
from stored_rows import stored_rows

from lakelens import ImageTable
from lakelens.errors import AnnotationFileError, NothingStoredError
from lakelens.etl.annotations.references import images_by_name, name_in_path, without_drive

BOX = {"category_id": 1, "bbox": [2, 2, 20, 20]}


@pytest.mark.unit
@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("file:///a/b/1.jpg", "1.jpg"),
        ("file:///a/b%5C1.jpg", "1.jpg"),
        ("file:///a/x%253Ay.jpg", "x:y.jpg"),
        ("file:///a/x%3Ay.jpg", "x:y.jpg"),
        ("s3a://bucket/a/x%20y.jpg", "x y.jpg"),
    ],
)
def test_a_name_is_the_same_however_a_tool_writes_it(path, name):
    assert name_in_path(path) == name


@pytest.mark.unit
@pytest.mark.parametrize(
    ("references", "images", "found"),
    [
        (["/s/up/1.jpg"], ["/s/1.jpg"], {"/s/up/1.jpg": "/s/1.jpg"}),
        (["/s/1%20.jpg", "/s/up/1 .jpg"], ["/s/1 .jpg"], {"/s/1%20.jpg": "/s/1 .jpg"}),
        (["/s/up/1.jpg"], [], {}),
        ([], ["/s/1.jpg", "/s/a/1.jpg"], {}),
    ],
)
def test_the_decoded_path_comes_before_the_only_name(references, images, found):
    assert images_by_name(references, images) == found


@pytest.mark.unit
@pytest.mark.parametrize(
    ("references", "images"), [(["/up/1.jpg"], ["/a/1.jpg", "/b/1.jpg"]), (["/up/1.jpg", "/down/1.jpg"], ["/a/1.jpg"])]
)
def test_several_images_of_a_name_are_an_error_that_names_them(references, images):
    with pytest.raises(AnnotationFileError, match=r"which one is meant is not clear.*/a/1\.jpg"):
        images_by_name(references, images)
    # An image of the name has its own annotation: the other one need not be what is meant.
    with pytest.raises(AnnotationFileError, match=r"which one is meant is not clear.*/a/1\.jpg"):
        images_by_name(["/up/1.jpg"], ["/a/1.jpg"], others=1)


@pytest.mark.unit
@pytest.mark.parametrize("text", ["C:\\data\\1.jpg", "d:/data/1.jpg", "\\\\server\\data\\1.jpg"])
def test_a_drive_of_windows_is_taken_away(text):
    assert without_drive(text).replace("\\", "/").endswith("/data/1.jpg")


def coco(root: Path, names: list[str]) -> Path:
    images = [{"id": n, "file_name": name, "width": 60, "height": 40} for n, name in enumerate(names)]
    content = {"images": images, "annotations": [{**BOX, "id": n, "image_id": n} for n in range(len(names))]}
    root.mkdir(parents=True, exist_ok=True)
    (root / "_annotations.coco.json").write_text(json.dumps({**content, "categories": [{"id": 1, "name": "cat"}]}))
    return root


@pytest.mark.spark
def test_names_as_label_tools_write_them_find_their_images(spark, tmp_path):
    names = ["..\\..\\tool\\media\\upload\\4\\x.png", "images/1/y.png", "a%3Ab.png", "C:\\d\\z é.png", "w.png"]
    source = coco(tmp_path / "s", names)
    files = ["x.png", "y.png", "a:b.png", "deep/z é.png", "w.png"]
    for name in files:
        write_image(source / name)
    table = ImageTable(spark, tmp_path / "t")
    result = table.ingest(source, layout="coco", size=32)
    stored = {unquote(row.path.rpartition("/s/")[2]): len(row.annotations) for row in stored_rows(table.location)}
    assert stored == dict.fromkeys(files, 1)
    assert result.repairs["image_found_by_name"] == 4


@pytest.mark.spark
def test_what_is_not_clear_or_stores_nothing_makes_no_table(spark, tmp_path):
    source = coco(tmp_path / "s", ["up/x.png"])
    for name in ("a/x.png", "b/x.png"):
        write_image(source / name)
    with pytest.raises(AnnotationFileError, match=r"a/x\.png, .*b/x\.png"):
        ImageTable(spark, tmp_path / "t").preview(source, layout="coco")
    for name in ("a/x.png", "b/x.png"):
        (source / name).unlink()
    (source / "y.png").write_bytes(b"no image")
    with pytest.raises(NothingStoredError, match=r"none of 2 images can be stored.*annotation_missing"):
        ImageTable(spark, tmp_path / "t").ingest(source, layout="coco", size=32)
    assert not (tmp_path / "t").exists()
