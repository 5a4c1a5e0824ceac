"""Images and boxes as other tools write them, from a manifest to rows, counts and pixels."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from deltalake import DeltaTable
from etl_pictures import encoded, oriented
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from stored_rows import stored_rows

from lakelens import ImageTable
from lakelens.etl.images.recipe import RECIPE_PROPERTY
from lakelens.jobs.cli import main

pytestmark = pytest.mark.spark

PIXELS = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)


def damaged_text() -> bytes:
    text = PngInfo()
    text.add_text("comment", "a" * 100)
    data = bytearray(encoded(Image.fromarray(PIXELS), "PNG", pnginfo=text))
    data[data.index(b"tEXt") + 20] ^= 0xFF
    return bytes(data)


CAT, OWL = {"label": "cat", "bbox": [1, 1, 6, 4]}, {"label": "owl", "bbox": [2, 2, 9, 9]}
BAD = [
    {"label": "cat"},
    {"bbox": [1, 1, 5, 5]},
    {"label": "cat", "bbox": [9000, 0, 5, 5]},
    {"label": "cat", "bbox": [5, 5, 0, 0]},
]
PICTURE = Image.fromarray(PIXELS)
JPEG, PNG = encoded(PICTURE, quality=95), encoded(PICTURE, "PNG")
# Each image with its file and the boxes of its row.
IMAGES = {
    "no_end.jpg": (JPEG[:-2], [CAT, BAD[0]]),
    "cut.jpg": (JPEG[: len(JPEG) // 2] + b"\xff\xd9", [CAT]),
    "damaged_text.png": (damaged_text(), [CAT, OWL]),
    "bad_profile.jpg": (encoded(PICTURE, icc_profile=b"no profile"), [OWL]),
    "clear.png": (encoded(Image.fromarray(np.dstack([PIXELS, np.zeros((16, 16), np.uint8)])), "PNG"), None),
    "dark.png": (encoded(Image.fromarray(np.linspace(0, 4000, 256).reshape(16, 16).astype(np.uint16)), "PNG"), []),
    "turned.jpg": (encoded(PICTURE, exif=oriented(6)), [CAT]),
    "half.png": (PNG, [CAT, *BAD]),
    "lost.png": (PNG, BAD[:1]),
}
CLASSES = {
    "damaged_text.png": ["cat", "owl"],
    "bad_profile.jpg": ["owl"],
    "clear.png": None,
    "dark.png": [],
    "turned.jpg": ["cat"],
}
WITH_A_LOSS = {"no_end.jpg": ["cat"], "half.png": ["cat"]}
REPAIRS = {"metadata_skipped": 1, "profile_ignored": 1, "alpha_ignored": 1}
BOXES = {"box_malformed": 3, "box_outside": 1, "box_no_area": 1}


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    for name, (data, _) in IMAGES.items():
        (folder / name).write_bytes(data)
    rows = [{"path": name, "boxes": boxes} for name, (_, boxes) in IMAGES.items()]
    (folder / "boxes.json").write_text(json.dumps(rows))
    return str(folder / "boxes.json")


def stored(place: Path):
    """The rows by name, and the classes of their boxes."""
    rows = {Path(row.path).name: row for row in stored_rows(place)}
    given = {name: row.annotations for name, row in rows.items()}
    return rows, {name: None if boxes is None else [box.label_name for box in boxes] for name, boxes in given.items()}


def pixels_of(row) -> np.ndarray:
    return np.frombuffer(row.image, np.uint8).reshape(16, 16, 3)


def sides(box) -> list[float]:
    return [box.xmin, box.ymin, box.xmax, box.ymax]


def test_what_was_repaired_is_counted_and_an_image_that_lost_a_box_is_never_an_example_without_objects(
    spark, manifest, tmp_path
):
    table = ImageTable(spark, tmp_path / "t")
    result = table.ingest(manifest, "manifest", size=16, store="raw_rgb")
    assert (result.reasons, result.repairs) == (
        {"boxes_lost": 3, "truncated": 1},
        {**REPAIRS, "dark_samples": 1, "orientation_assumed": 1},
    )
    rows, classes = stored(tmp_path / "t")
    assert classes == CLASSES
    assert np.array_equal(pixels_of(rows["clear.png"]), PIXELS)
    assert sides(rows["turned.jpg"].annotations[0]) == [1, 1, 7, 5]  # drawn on the upright image
    causes = {Path(file.path).name: file.error for file in table.quarantine().files}
    assert re.search("4 of its boxes .*: box_malformed: .*; box_malformed: .*; box_outside: .*9000", causes["half.png"])
    assert "box_no_area" not in causes["half.png"]
    assert dict(table.ingest(manifest, "manifest", drop_bad_boxes=True).reasons) == {"boxes_lost": 1}
    assert stored(tmp_path / "t")[1] == CLASSES | WITH_A_LOSS


def test_options_of_the_command_change_what_is_repaired(spark, manifest, tmp_path, capsys):
    flags = "--layout manifest --size 16 --store raw_rgb --drop-bad-boxes --depth image --boxes-drawn-on file"
    assert main(["etl", manifest, str(tmp_path / "t"), *flags.split()]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["reasons"] == {"boxes_lost": 1, "truncated": 1}
    assert result["repairs"] == {**REPAIRS, **BOXES, "end_marker_missing": 1}
    rows, classes = stored(tmp_path / "t")
    assert classes == CLASSES | WITH_A_LOSS
    assert pixels_of(rows["dark.png"]).max() == 255
    assert sides(rows["turned.jpg"].annotations[0]) == [11, 1, 15, 7]  # turned with the file
    recipe = json.loads(DeltaTable(str(tmp_path / "t")).metadata().configuration[RECIPE_PROPERTY])
    assert (recipe["depth"], recipe["boxes_drawn_on"]) == ("image", "file")
