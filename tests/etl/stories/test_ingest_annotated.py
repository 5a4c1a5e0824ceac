"""Annotated layouts: boxes are found again by their pixels, faults by reason."""

from __future__ import annotations

import functools
import json
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from etl_pictures import encoded, oriented
from PIL import Image, ImageDraw
from stored_rows import stored_rows

from lakelens import ImageTable
from lakelens.errors import AnnotationFileError
from lakelens.etl.annotations.frames import ImageFrames

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

SIZE = 96
WIDTH, HEIGHT = 192, 144
# In pixels of the file, half-open; no turn or flip brings one to the place of another.
MARKS = {"red": (16, 8, 80, 56), "green": (112, 80, 184, 128), "blue": (96, 24, 136, 40)}
CHANNELS = {"red": 0, "green": 1, "blue": 2}
ORIENTATIONS = range(1, 9)
# Resampling smears an edge over its neighbours: half a pixel at each side, and the threshold's rounding.
TOLERANCE = 1.0


class Told(NamedTuple):
    """One ingest of one layout."""

    result: object
    rows: dict[str, object]
    bad: dict[str, str]


@functools.cache
def marked(orientation: int, *, large: int = 1) -> bytes:
    """A black file with one coloured rectangle for each mark, to be shown turned by its EXIF orientation."""
    image = Image.new("RGB", (WIDTH * large, HEIGHT * large))
    draw = ImageDraw.Draw(image)
    for name, (x0, y0, x1, y1) in MARKS.items():
        colour = tuple(255 if channel == CHANNELS[name] else 0 for channel in range(3))
        draw.rectangle((x0 * large, y0 * large, x1 * large - 1, y1 * large - 1), fill=colour)
    if large > 1:  # large enough for the decoder to reduce it
        return encoded(image, "JPEG", quality=95, subsampling=0, exif=oriented(orientation))
    return encoded(image, "PNG", exif=oriented(orientation))


def write(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def write_marked(folder: Path) -> dict[str, int]:
    """Writes a marked image of every orientation, small and large; gives the names with their enlargement."""
    large = {f"{orientation}.png": 1 for orientation in ORIENTATIONS}
    large |= {f"large {orientation} é%.jpg": 8 for orientation in (1, 6)}
    for name, factor in large.items():
        orientation = int(name.removeprefix("large ")[0])
        write(folder / name, marked(orientation, large=factor))
    return large


def told(spark, place: Path, source: Path, layout: str, **options) -> Told:
    table = ImageTable(spark, place)
    result = table.ingest(source, layout, size=SIZE, store="raw_rgb", **options)
    assert result.rows_in == result.stored + result.quarantined + result.skipped
    rows = {Path(row.path).name.replace("%20", " "): row for row in stored_rows(table.location)}
    assert len(rows) == result.stored
    bad = {Path(file.path).name: file.reason for file in table.quarantine().files}
    assert Counter(bad.values()) == Counter(result.reasons)
    return Told(result, rows, bad)


def found_by_pixels(row) -> dict[str, tuple[float, ...]]:
    """Where each colour is in the stored image: the box of the pixels that are more of it than not."""
    pixels = np.frombuffer(row.image, np.uint8).reshape(row.height, row.width, 3).astype(int)
    boxes = {}
    for name, channel in CHANNELS.items():
        others = [other for other in range(3) if other != channel]
        ys, xs = np.nonzero((pixels[..., channel] > 127) & (pixels[..., others].max(axis=-1) < 128))
        boxes[name] = (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1)
    return boxes


def assert_marks_are_where_the_boxes_say(rows, names) -> None:
    for name in names:
        row = rows[name.replace("é%", "%C3%A9%25")]
        boxes = {box.label_name: (box.xmin, box.ymin, box.xmax, box.ymax) for box in row.annotations}
        seen = found_by_pixels(row)
        assert sorted(boxes) == sorted(MARKS), name
        for label, box in boxes.items():
            np.testing.assert_allclose(box, seen[label], atol=TOLERANCE, err_msg=f"{label} of {name}")
        frames = ImageFrames.of(row.width, row.height, vars(row.source))
        ((left, top, right, bottom),) = frames.to_source(np.array([[0.0, 0.0, row.width, row.height]]))
        for label, box in boxes.items():
            drawn = np.array(MARKS[label]) * names[name]
            # What a crop has cut off is gone.
            visible = np.clip(drawn, [left, top] * 2, [right, bottom] * 2)
            np.testing.assert_allclose(frames.to_source(np.array([box])), [visible], atol=1e-6)


# Pascal VOC, padded.


def voc_xml(size: tuple[int, int], objects: list[tuple[str, tuple[float, ...]]]) -> str:
    parts = "".join(
        f"<object><name>{name}</name><bndbox><xmin>{x0 + 1}</xmin><ymin>{y0 + 1}</ymin><xmax>{x1}</xmax>"
        f"<ymax>{y1}</ymax></bndbox></object>"
        for name, (x0, y0, x1, y1) in objects
    )
    return f"<annotation><size><width>{size[0]}</width><height>{size[1]}</height></size>{parts}</annotation>"


def scaled(factor: int) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, tuple(factor * side for side in box)) for name, box in MARKS.items()]


@pytest.fixture(scope="module")
def voc(spark, tmp_path_factory):
    root = tmp_path_factory.mktemp("voc") / "VOC 100%"
    names = write_marked(root / "JPEGImages")
    for name, factor in names.items():
        xml = voc_xml((WIDTH * factor, HEIGHT * factor), scaled(factor))
        write(root / "Annotations" / f"{Path(name).stem}.xml", xml)
    faults = {
        "outside": ("red", (500, 500, 600, 600)),
        "inverted": ("red", (80, 56, 16, 8)),
        "stranger": ("zebra", (16, 8, 80, 56)),
    }
    for name, fault in faults.items():
        write(root / "JPEGImages" / f"{name}.png", marked(1))
        write(root / "Annotations" / f"{name}.xml", voc_xml((WIDTH, HEIGHT), [("blue", MARKS["blue"]), fault]))
    write(root / "JPEGImages" / "other_size.png", marked(1))
    write(root / "Annotations" / "other_size.xml", voc_xml((WIDTH * 3, HEIGHT), scaled(1)))
    write(root / "JPEGImages" / "no_xml.png", marked(1))
    for suffix in ("png", "jpg"):
        write(root / "JPEGImages" / f"shared.{suffix}", marked(1))
    write(root / "Annotations" / "shared.xml", voc_xml((WIDTH, HEIGHT), scaled(1)))
    write(root / "JPEGImages" / "broken.png", "no image")
    write(root / "Annotations" / "broken.xml", voc_xml((WIDTH, HEIGHT), scaled(1)))
    write(root / "Annotations" / "no_image.xml", voc_xml((WIDTH, HEIGHT), scaled(1)))
    write(root / "SegmentationClass" / "1.png", marked(1))
    for name in ("of two words", "in_two_splits"):
        write(root / "JPEGImages" / f"{name}.png", marked(1))
        write(root / "Annotations" / f"{name}.xml", voc_xml((WIDTH, HEIGHT), 2 * [("blue", MARKS["blue"])]))
    write(root / "ImageSets" / "Main" / "train.txt", "1\n2\nof two words\nof three words\nin_two_splits\n")
    write(root / "ImageSets" / "Main" / "val.txt", "3\nin_two_splits\n")
    write(root / "ImageSets" / "Main" / "trainval.txt", "1\n3\n4\nin_two_splits\n")
    write(root / "ImageSets" / "Main" / "red_test.txt", "4  1\n5  1\n")
    # A list whose images are all in another list, too, is not one that names no image.
    write(root / "ImageSets" / "Main" / "test.txt", "in_two_splits\nnowhere\n")
    options = {"classes": list(MARKS), "splits": {"by_content": 1.0}}
    return names, told(spark, root.parent / "t", root, "voc", resize="fit", boxes_drawn_on="file", **options)


def test_voc_boxes_lie_on_their_objects_in_every_orientation(voc):
    names, told_of = voc
    assert_marks_are_where_the_boxes_say(told_of.rows, names)


def test_voc_faults_are_counted_by_reason(voc):
    names, (result, rows, bad) = voc
    assert bad == {
        "other_size.png": "annotation_size_mismatch",
        "no_xml.png": "annotation_missing",
        "shared.png": "annotation_shared",
        "shared.jpg": "annotation_shared",
        "broken.png": "not_an_image",
        "no_image.xml": "image_missing",
        "in_two_splits.png": "split_conflict",
        "outside.png": "boxes_lost",
        "of three words#train": "image_missing",
        "nowhere#test": "image_missing",
    }
    assert result.repairs == {"box_inverted": 1, "box_class_unwanted": 1}
    assert result.stored == len(names) + 3
    assert [box.label_name for box in rows["stranger.png"].annotations] == ["blue"]
    assert len(rows["inverted.png"].annotations) == 2
    assert [box.label_name for box in rows["of two words.png"].annotations] == ["blue", "blue"]
    assert result.ignored["other_folder"] == 1


def test_the_lists_of_voc_are_its_splits(voc):
    splits = {Path(name).stem: row.split for name, row in voc[1].rows.items()}
    assert [splits[name] for name in "1234"] == ["train", "train", "validation", "train"]
    # The list of a class is none of a split.
    assert [splits[name] for name in ("5", "of two words")] == ["by_content", "train"]


def test_a_list_of_which_no_line_names_an_image_is_an_error(spark, tmp_path):
    for image in ("1", "2"):
        write(tmp_path / "JPEGImages" / f"{image}.png", marked(int(image)))
        write(tmp_path / "Annotations" / f"{image}.xml", voc_xml((WIDTH, HEIGHT), scaled(1)))
    write(tmp_path / "ImageSets" / "Main" / "trainval.txt", "one\n3 0\n")
    words = r"no line of the split list trainval.txt names an image; the first is"
    with pytest.raises(AnnotationFileError, match=words):
        ImageTable(spark, tmp_path / "t").preview(tmp_path, "voc")


# COCO, cropped.


@pytest.fixture(scope="module")
def coco(spark, tmp_path_factory):
    root = tmp_path_factory.mktemp("coco") / "coco é"
    for folder in (root, root.parent / "another disk"):
        folder.mkdir()
    (root / "train2017").symlink_to(root.parent / "another disk")
    names = {"turned é%.png": 6, "plain.png": 1}
    for name, orientation in names.items():
        write(root / "train2017" / name, marked(orientation))
    content = {"images": [], "annotations": [], "categories": [{"id": 7 + n, "name": c} for n, c in enumerate(MARKS)]}

    def add(name: str, boxes: list[tuple[int, list]], factor: int = 1) -> None:
        number = len(content["images"])
        size = {"width": WIDTH * factor, "height": HEIGHT * factor}
        content["images"].append({"id": number, "file_name": name, **size})
        content["annotations"] += [{"image_id": number, "category_id": of, "bbox": box} for of, box in boxes]

    marks = [(7 + n, [x0, y0, x1 - x0, y1 - y0]) for n, (x0, y0, x1, y1) in enumerate(MARKS.values())]
    for name in (*names, "gone.png"):
        add(name, marks)
    for name, boxes, factor in (
        ("stranger.png", [marks[1], (99, [16, 8, 64, 48])], 1),
        ("no_numbers.png", [marks[1], (7, ["left", 1, 2, 3])], 1),
        ("nothing_in_it.png", [], 1),
        ("other_size.png", marks, 3),
    ):
        write(root / "train2017" / name, marked(1))
        add(name, boxes, factor)
    write(root / "train2017" / "not_named.png", marked(1))
    content["annotations"].append({"image_id": 777, "category_id": 7, "bbox": [1, 2, 3, 4]})
    write(root / "annotations" / "instances_train2017.json", json.dumps(content))
    of_val = {
        "images": [{"id": 0, "file_name": "of_val.png", "width": WIDTH, "height": HEIGHT}],
        "annotations": [{"image_id": 0, "category_id": 7, "bbox": [112, 80, 72, 48]}],
        "categories": [{"id": 7, "name": "green"}],
    }
    write(root / "annotations" / "instances_val2017.json", json.dumps(of_val))
    write(root / "val2017" / "of_val.png", marked(1))
    write(root / "test2017" / "nobody_asked.png", marked(1))
    return dict.fromkeys(names, 1), told(spark, root.parent / "t", root, "coco", resize="crop")


def test_coco_boxes_lie_on_their_objects(coco):
    names, told_of = coco
    assert_marks_are_where_the_boxes_say(told_of.rows, names)


def test_coco_faults_are_counted_by_reason(coco):
    names, (result, rows, bad) = coco
    assert bad == {
        "not_named.png": "annotation_missing",
        "gone.png": "image_missing",
        "instances_train2017.json#image_id=777": "image_missing",
        "stranger.png": "boxes_lost",
        "no_numbers.png": "boxes_lost",
    }
    assert set(result.repairs) == {"box_cropped", "annotation_size_scaled"}
    assert result.repairs["box_cropped"] >= len(names)
    assert result.repairs["annotation_size_scaled"] == 1
    assert result.stored == len(names) + 3
    assert rows["nothing_in_it.png"].annotations == []
    assert result.ignored == {"other_folder": 1}


def test_each_file_of_coco_has_its_own_images_numbers_and_split(coco):
    rows = dict(coco[1].rows)
    of_val = rows.pop("of_val.png")
    assert (of_val.split, [box.label_name for box in of_val.annotations]) == ("validation", ["green"])
    assert {row.split for row in rows.values()} == {"train"}


@pytest.mark.parametrize("folders", [["train2017"], ["train2017", "images/train2017"]])
def test_a_broken_coco_file_is_named_however_many_folders_may_hold_its_images(spark, tmp_path, folders):
    for folder in folders:
        write(tmp_path / folder / "one.png", marked(1))
    write(tmp_path / "annotations" / "instances_train2017.json", '{"images": [')
    with pytest.raises(AnnotationFileError, match=r"instances_train2017\.json is not JSON in UTF-8"):
        ImageTable(spark, tmp_path / "t").ingest(tmp_path, layout="coco")
