"""Images as other tools write them, from a manifest through the command to rows, counts and pixels."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from deltalake import DeltaTable
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from lakelens.etl.images.recipe import RECIPE_PROPERTY
from lakelens.jobs.cli import main

pytestmark = pytest.mark.spark

PIXELS = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)


def encoded(kind: str, image: Image.Image, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def damaged_text() -> bytes:
    text = PngInfo()
    text.add_text("comment", "a" * 100)
    data = bytearray(encoded("PNG", Image.fromarray(PIXELS), pnginfo=text))
    data[data.index(b"tEXt") + 20] ^= 0xFF
    return bytes(data)


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded("JPEG", Image.fromarray(PIXELS), exif=exif)


JPEG = encoded("JPEG", Image.fromarray(PIXELS), quality=95)
FILES = {
    "no_end.jpg": JPEG[:-2],
    "half.jpg": JPEG[: len(JPEG) // 2] + b"\xff\xd9",
    "damaged_text.png": damaged_text(),
    "bad_profile.jpg": encoded("JPEG", Image.fromarray(PIXELS), icc_profile=b"no profile"),
    "clear.png": encoded("PNG", Image.fromarray(np.dstack([PIXELS, np.zeros((16, 16), np.uint8)]))),
    "dark.png": encoded("PNG", Image.fromarray(np.linspace(0, 4000, 256).reshape(16, 16).astype(np.uint16))),
    "turned.jpg": turned(),
}


def pixels_of(row: dict[str, bytes]) -> np.ndarray:
    return np.frombuffer(row["image"], np.uint8).reshape(16, 16, 3)


CAT = {"label": "cat", "bbox": [1, 1, 6, 4]}


def test_what_was_repaired_is_counted_under_one_name_in_result_and_history(spark, tmp_path, capsys):
    rows = [{"path": name, "boxes": [CAT]} for name in FILES]
    rows[0]["boxes"].append({"label": "cat"})
    rows[2]["boxes"], rows[3]["boxes"] = None, []
    (tmp_path / "source").mkdir()
    for name, data in FILES.items():
        (tmp_path / "source" / name).write_bytes(data)
    (tmp_path / "source" / "boxes.json").write_text(json.dumps(rows))
    manifest = str(tmp_path / "source" / "boxes.json")
    options = ("--layout", "manifest", "--size", "16", "--store", "raw_rgb")

    def stored(name: str, *flags: str):
        assert main(["etl", manifest, str(tmp_path / name), *options, *flags]) == 0
        result = json.loads(capsys.readouterr().out.splitlines()[-1])
        found = DeltaTable(str(tmp_path / name))
        by_name = {Path(row["path"]).name: row for row in found.to_pyarrow_table().to_pylist()}
        return result, by_name, json.loads(found.metadata().configuration[RECIPE_PROPERTY])

    result, found, recipe = stored("usual")
    assert result["reasons"] == {"boxes_lost": 1, "truncated": 1}
    one = {"metadata_skipped": 1, "profile_ignored": 1, "alpha_ignored": 1, "dark_samples": 1, "orientation_assumed": 1}
    assert result["repairs"] == one
    assert (found["damaged_text.png"]["annotations"], found["bad_profile.jpg"]["annotations"]) == (None, [])
    assert np.array_equal(pixels_of(found["clear.png"]), PIXELS)
    (box,) = found["turned.jpg"]["annotations"]
    assert [box[side] for side in ("xmin", "ymin", "xmax", "ymax")] == [1, 1, 7, 5]  # drawn on the upright image
    assert recipe["depth"] == "full"

    flags = ("--drop-bad-boxes", "--depth", "image", "--boxes-drawn-on", "file")
    result, found, recipe = stored("asked", *flags)
    assert result["reasons"] == {"truncated": 1}
    unasked = {name: 1 for name in one if name not in ("dark_samples", "orientation_assumed")}
    assert result["repairs"] == {**unasked, "end_marker_missing": 1, "box_malformed": 1}
    assert pixels_of(found["dark.png"]).max() == 255
    (box,) = found["turned.jpg"]["annotations"]
    assert [box[side] for side in ("xmin", "ymin", "xmax", "ymax")] == [11, 1, 15, 7]  # turned with the file
    assert (recipe["depth"], recipe["boxes_drawn_on"]) == ("image", "file")
