"""Rows that cannot be fed are named with their file and the reason, or left out and counted; sizes skip them."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from feed_tables import HEIGHT, WIDTH, append, changed, encoded, image_rows, number_classes, pixels_of, real

from lakelens import DeltaFeed
from lakelens.errors import BadRowError, InvalidArgumentError
from lakelens.training.experiment.train import train
from lakelens.training.feed.image_plan import size_of_all_images

pytestmark = pytest.mark.unit

LOW, HIGH = -(2**31), 2**31 - 1


def huge_png() -> bytes:
    """The header of 20,000 x 20,000 pixels, and none of them."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


# Columns that are changed, what the error says, and the labels of the rows that are left.
CASES = {
    "images": (
        {"image": [encoded(0), b"", encoded(2)[:-40], None, b"this is text", encoded(5)]},
        r"row 1 of .*part-.*does not decode.*bad_rows='skip'",
        [0, 5],
    ),
    "another size": ({"image": [encoded(0), encoded(1, height=30)]}, "row 1 .* 30 x 16 pixels; resize all images", [0]),
    "too many pixels": ({"image": [huge_png(), encoded(1)]}, r"row 0 .* does not decode", [1]),
    "raw pixels without a size": (
        {"image": [encoded(0, "raw_rgb")] * 2, "format": ["raw_rgb"] * 2, "height": [HEIGHT, None]},
        r"row 1 .* needs the row's height and width in pixels, they are None, 16",
        [0],
    ),
    "no label": ({"label": [0, 1, None, 3]}, r"row 2 .* has no label in column 'label'.*'skip'", [0, 1, 3]),
    "label beyond int32": (
        {"label": [LOW, HIGH + 1, LOW - 1, HIGH]},
        r"row 1 .* has label 2147483648 in column 'label', outside -2147483648 to .* what int32 holds",
        [LOW, HIGH],
    ),
    "class without a number": ({"label": ["cat", "cow"]}, r"row 1 .* class 'cow' in column 'label'", [0]),
    "no class": ({"label": ["cat", None]}, "row 1 .* no label", [0]),
}


@pytest.mark.parametrize(("columns", "words", "kept"), CASES.values(), ids=CASES)
def test_a_bad_row_is_named_or_left_out_and_counted(tmp_path, columns, words, kept):
    rows = len(next(iter(columns.values())))
    append(tmp_path / "t", changed(image_rows(range(rows)), **columns))
    number_classes(tmp_path / "t", {"cat": 0})
    feed = DeltaFeed(tmp_path / "t", shuffle=False)
    with pytest.raises(BadRowError, match=words):
        list(feed.as_numpy(rows))
    _, labels, weights = next(feed.as_numpy(rows, bad_rows="skip"))
    assert (labels.tolist(), weights.tolist()) == (kept, [1] * len(kept))
    assert feed.skipped.count == rows - len(kept)
    # Devices take equal shares, so the bad rows stay, black and without weight.
    images, labels, weights = next(feed.as_numpy(rows, bad_rows="skip", replicas=2))
    bad = np.flatnonzero(weights[:rows] == 0)
    assert len(bad) == rows - len(kept)
    assert np.delete(labels[:rows], bad).tolist() == kept
    assert not images[bad].any()


def test_bad_rows_are_left_out_of_their_batches(tmp_path):
    bad = {2: b"", 5: None, 6: encoded(6)[:-40], 9: b"this is text"}
    append(tmp_path / "t", changed(image_rows(range(12)), image=[bad.get(n, encoded(n)) for n in range(12)]))
    feed = DeltaFeed(tmp_path / "t", shuffle=False)
    batches = list(feed.as_numpy(5, bad_rows="skip"))
    assert [real(batch) for batch in batches] == [[0, 1, 3, 4], [7, 8], [10, 11]]
    assert [len(weights) for _, _, weights in batches] == [4, 2, 2]
    assert sorted(int(said.split("row ")[1].split()[0]) for said in feed.skipped.first) == list(bad)


def of_cameras(form: str) -> pa.Table:
    """20 rows of camera a, 12 x 16 pixels each, and 4 of camera b, twice as high and wide."""
    sizes = [(HEIGHT, WIDTH)] * 20 + [(2 * HEIGHT, 2 * WIDTH)] * 4
    heights, widths = zip(*sizes, strict=True)
    images = [encoded(n, form, *size) for n, size in enumerate(sizes)]
    columns = {"image": images, "format": [form] * 24, "height": heights, "width": widths}
    return changed(image_rows(range(24)), **columns, camera=["a"] * 20 + ["b"] * 4)


@pytest.mark.parametrize(
    ("parts", "filters", "size"),
    [
        ([of_cameras("jpeg")], {"camera": "b"}, (2 * HEIGHT, 2 * WIDTH)),
        ([of_cameras("raw_rgb")], {"camera": "b"}, (2 * HEIGHT, 2 * WIDTH)),
        ([changed(image_rows(range(2), "raw_rgb"), height=[None, HEIGHT])], {}, (HEIGHT, WIDTH)),
        ([changed(image_rows(range(2)), image=[huge_png(), encoded(1)])], {}, (HEIGHT, WIDTH)),
        (
            [image_rows(range(4)), image_rows(range(4, 24)).drop(["image"]), image_rows(range(24, 28))],
            {"label": [20, 25]},
            (HEIGHT, WIDTH),
        ),
    ],
    ids=["jpeg", "raw", "first row without", "first row too large", "file without images"],
)
def test_images_have_the_size_of_the_first_row_that_is_kept_and_has_one(tmp_path, parts, filters, size):
    for rows in parts:
        append(tmp_path / "t", rows, schema_mode="merge")
    feed = DeltaFeed(tmp_path / "t", filters=filters)
    assert feed.stored_size == size
    assert next(feed.as_numpy(feed.rows, bad_rows="skip"))[0].shape[1:3] == size
    assert next(feed.as_numpy(feed.rows, bad_rows="skip", image_size=8))[0].shape[1:3] == (8, 8)


def test_no_image_has_to_tell_its_size_where_the_size_is_given(tmp_path):
    append(tmp_path / "t", changed(image_rows(range(20)), image=[None] * 19 + [encoded(19)]))
    feed = DeltaFeed(tmp_path / "t", shuffle=False)
    with pytest.raises(BadRowError, match=r"none of the 16 rows .* tells the size of its image .* give image_size"):
        feed.as_numpy(20)
    images, labels, _ = next(feed.as_numpy(20, bad_rows="skip", image_size=(HEIGHT, WIDTH)))
    assert labels.tolist() == [19]
    assert np.abs(images[0] - pixels_of(19)).max() <= 3


def test_the_form_of_a_stored_image_may_be_a_partitions_value(tmp_path):
    write_deltalake(str(tmp_path / "t"), image_rows(range(4), "raw_rgb"), partition_by=["format"])
    assert next(DeltaFeed(tmp_path / "t").as_numpy(4))[0].shape == (4, HEIGHT, WIDTH, 3)


# --- one size of all images, which a training without image_size needs ------------------------------------------------

OTHER = [WIDTH, WIDTH, WIDTH, 20]


def table_of(location: Path, *widths: list[int | None], split: str = "train") -> Path:
    """A file of four rows for each list of widths; the last one of a split of its own."""
    for part, given in enumerate(widths, 1):
        rows = image_rows(range(4 * part - 4, 4 * part), split=split if part == len(widths) else "train")
        append(location, changed(rows, width=pa.array(given, pa.int32())), row_group_rows=2)
    return location


def size_of(location: Path, *splits: str | None, **options: object) -> tuple[int, int]:
    return size_of_all_images([DeltaFeed(location, split=split, **options).plan for split in splits])


def test_a_training_on_images_of_mixed_sizes_needs_image_size(tmp_path):
    location = table_of(tmp_path / "t", [WIDTH] * 4, OTHER)
    config = {"data": {"class_names": ["a"] * 8, "validation_split": None}}
    words = rf"\.parquet has an image of 12 x 20 pixels, the first one is 12 x 16; .* image_size=\(12, {WIDTH}\)"
    with pytest.raises(InvalidArgumentError, match=words):
        train(location, tracking_uri=f"sqlite:///{tmp_path}/mlflow.db", config=config)
    assert not (tmp_path / "mlflow.db").exists()


def test_rows_without_a_size_are_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="rows without the size of their image"):
        size_of(table_of(tmp_path / "nulls", [WIDTH, None, WIDTH, WIDTH]), None)
    append(tmp_path / "t", image_rows(range(4)).drop(["height"]))
    with pytest.raises(InvalidArgumentError, match=r"without the size .* \(columns height and width\); .* image_size="):
        size_of(tmp_path / "t", None)


def test_the_rows_of_all_feeds_count_and_no_others(tmp_path):
    location = table_of(tmp_path / "t", [WIDTH] * 4, [20] * 4, split="test")
    assert size_of(location, "train") == size_of(location, None, filters={"label": [1, 3]}) == (HEIGHT, WIDTH)
    for splits, options in ((["train", "test"], {}), ([None], {"filters": {"label": [1, 3, 5]}})):
        with pytest.raises(InvalidArgumentError, match="has an image of 12 x 20 pixels"):
            size_of(location, *splits, **options)
