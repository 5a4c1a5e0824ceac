"""What comes out of the feed: NumPy without TensorFlow, columns, boxes, bad rows, careful decoding."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zlib
from dataclasses import replace
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from feed_tables import HEIGHT, WIDTH, append, encoded, flat, image_rows, pixels_of, real, write_layout
from PIL import Image

from lakelens import DeltaFeed
from lakelens.errors import BadRowError, InvalidArgumentError
from lakelens.etl.images.stored_image import PixelDecoder, StoredImage

pytestmark = pytest.mark.tensorflow


@pytest.fixture(scope="module")
def feed(tmp_path_factory) -> DeltaFeed:
    return DeltaFeed(write_layout(tmp_path_factory.mktemp("feed") / "t", [30, 11, 2], row_group_rows=7), seed=5)


@pytest.mark.parametrize("form", ["jpeg", "png", "raw_rgb"])
def test_numpy_batches_are_those_of_the_dataset(tmp_path, form):
    feed = DeltaFeed(write_layout(tmp_path / form, [9, 5], form=form))
    for dtype in ("float32", "uint8"):
        arrays = list(feed.as_numpy(4, 0, 1, 2, dtype=dtype))
        tensors = list(feed.as_dataset(4, 0, 1, 2, dtype=dtype))
        assert len(arrays) == len(tensors) == 8
        for (images, labels, weights), (images_tf, labels_tf, weights_tf) in zip(arrays, tensors, strict=True):
            assert images.dtype == np.dtype(dtype)
            assert images.shape == (len(labels), HEIGHT, WIDTH, 3)
            np.testing.assert_array_equal(labels, labels_tf.numpy())
            np.testing.assert_array_equal(weights, weights_tf.numpy())
            np.testing.assert_array_equal(images, images_tf.numpy())


def jpeg(pixels: np.ndarray, **options) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", **options)
    return buffer.getvalue()


def waves(number: int, height: int = 37, width: int = 53) -> np.ndarray:
    """Pixels in which every kind of JPEG rounds differently."""
    y, x = np.mgrid[0:height, 0:width]
    noise = np.random.default_rng(number).integers(0, 60, (height, width, 3))
    return (np.stack([y * 5 + x, x * 4 + 40, (x * y) // 3], axis=-1) % 196 + noise).astype(np.uint8)


def test_simplejpeg_gives_pillows_pixels_of_every_kind_of_jpeg():
    kinds = [{"subsampling": s, "quality": q, "progressive": p} for s in (0, 1, 2) for q in (30, 95) for p in (0, 1)]
    for number, kind in enumerate(kinds):
        image = StoredImage(jpeg(waves(number), **kind))
        ours, theirs = np.zeros((2, 37, 53, 3), np.uint8)
        PixelDecoder().decode(image, ours)
        PixelDecoder(simplejpeg=False).decode(image, theirs)
        np.testing.assert_array_equal(ours, theirs)


def test_jpeg_is_decoded_by_simplejpeg_straight_from_arrows_memory(tmp_path, monkeypatch):
    import lakelens.etl.images.stored_image

    append(tmp_path / "t", image_rows(range(6)))
    feed = DeltaFeed(tmp_path / "t")

    def unwanted(data):
        raise AssertionError("Pillow was asked to decode a plain JPEG")

    monkeypatch.setattr(lakelens.etl.images.stored_image, "decode_source", unwanted)
    assert sorted(flat(map(real, feed.as_numpy(3)))) == list(range(6))


def test_numpy_batches_need_neither_tensorflow_nor_spark(feed):
    code = (
        "import sys; from lakelens import DeltaFeed; "
        f"feed = DeltaFeed({feed.location!r}); print(sum(w.sum() for _, _, w in feed.as_numpy(8)), "
        "'tensorflow' in sys.modules, 'pyspark' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.split() == ["43.0", "False", "False"]


def test_images_are_resized_as_inference_resizes_them(tmp_path):
    from lakelens.inference.model.decoding import StoredRows, decode_rows

    files = [jpeg(waves(number)) for number in range(3)]
    append(tmp_path / "t", with_images(range(3), files))
    feed = DeltaFeed(tmp_path / "t", shuffle=False)
    for size in ((12, 16), (21, 17), (70, 90)):
        ours, _, _ = next(feed.as_numpy(3, image_size=size, dtype="uint8"))
        theirs = np.zeros((3, *size, 3), dtype=np.uint8)
        assert decode_rows(StoredRows(files), theirs, PixelDecoder()) == [None] * 3
        np.testing.assert_array_equal(ours, theirs)


def raw_rows(sizes: list[tuple[int, int]]) -> tuple[pa.Table, list[np.ndarray]]:
    """Rows of raw pixels, each of its own size, and the pixels."""
    pixels = [waves(number, *size) for number, size in enumerate(sizes)]
    rows = with_images(range(len(sizes)), [image.tobytes() for image in pixels])
    rows = rows.set_column(2, "format", pa.array(["raw_rgb"] * len(sizes)))
    for place, name, side in ((3, "height", 0), (4, "width", 1)):
        rows = rows.set_column(place, name, pa.array([size[side] for size in sizes], pa.int32()))
    return rows, pixels


def test_raw_pixels_of_mixed_sizes_are_fed_scored_and_profiled_at_each_rows_own_size(tmp_path):
    from lakelens.etl.images.near_images import decode_small
    from lakelens.inference.model.decoding import StoredRows, decode_rows

    sizes = [(48, 64), (64, 48), (32, 96)]  # all of 9,216 bytes
    rows, pixels = raw_rows(sizes)
    append(tmp_path / "t", rows)
    feed = DeltaFeed(tmp_path / "t", shuffle=False)
    with pytest.raises(BadRowError, match=r"row 1 .* 48 x 64 pixels: it is 64 x 48 pixels; resize all images"):
        list(feed.as_numpy(3))
    wanted = [np.asarray(Image.fromarray(image).resize((40, 20), Image.Resampling.BILINEAR)) for image in pixels]
    np.testing.assert_array_equal(next(feed.as_numpy(3, image_size=(20, 40), dtype="uint8"))[0], wanted)
    scored = np.zeros((3, 20, 40, 3), np.uint8)
    columns = (rows[name].to_pylist() for name in ("image", "format", "height", "width"))
    assert decode_rows(StoredRows(*columns), scored, PixelDecoder()) == [None] * 3
    np.testing.assert_array_equal(scored, wanted)
    for row, image in zip(rows.to_pylist(), pixels, strict=True):
        png = {"image": encoded_png(image), "format": "png"}
        np.testing.assert_array_equal(decode_small(row).image, decode_small(png).image)


def encoded_png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def test_raw_pixels_whose_row_tells_no_size_are_a_bad_row_though_others_do(tmp_path):
    rows, _ = raw_rows([(12, 16)] * 3)
    append(tmp_path / "t", rows.set_column(3, "height", pa.array([12, None, 12], pa.int32())))
    feed = DeltaFeed(tmp_path / "t", shuffle=False)
    with pytest.raises(BadRowError, match=r"row 1 .* needs the row's height and width in pixels, they are None, 16"):
        list(feed.as_numpy(3))
    assert real(next(feed.as_numpy(3, bad_rows="skip"))) == [0, 2]


@pytest.mark.parametrize("kept", [True, False])
def test_boxes_are_scaled_by_the_size_of_their_own_image(tmp_path, kept):
    sides = [100, 50, 20]
    boxes = [[{"label": 1, "xmin": 0.0, "ymin": 0.0, "xmax": 1.0 * side, "ymax": 1.0 * side}] for side in sides]
    rows = with_images(range(3), [encoded(n, "jpeg", side, side) for n, side in enumerate(sides)])
    rows = rows.append_column("annotations", pa.array(boxes)).drop(["height", "width"])
    if kept:
        for name in ("height", "width"):
            rows = rows.append_column(name, pa.array([100, None, None], pa.int32()))
    append(tmp_path / "t", rows)
    feed = DeltaFeed(tmp_path / "t", shuffle=False)
    _, target, _ = next(feed.as_numpy(3, image_size=100, box_classes=2))
    assert target[:, 0, :4].tolist() == [[0, 0, 100, 100]] * 3


def test_boxes_of_an_image_that_does_not_tell_its_size_are_those_of_a_bad_row(tmp_path):
    boxes = [[{"label": 1, "xmin": 0.0, "ymin": 0.0, "xmax": 8.0, "ymax": 8.0}]] * 2
    rows = with_images(range(2), [encoded(0), b"this is text"]).append_column("annotations", pa.array(boxes))
    append(tmp_path / "t", rows.drop(["height", "width"]))
    feed = DeltaFeed(tmp_path / "t", shuffle=False)
    with pytest.raises(BadRowError, match=r"row 1 .* has boxes and an image that does not tell its size"):
        list(feed.as_numpy(2, box_classes=2))
    _, target, weights = next(feed.as_numpy(2, box_classes=2, bad_rows="skip"))
    assert (weights.tolist(), target[:, 0, 4].tolist()) == ([1], [1])


def everything(rows: int) -> pa.Table:
    moment = datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=timezone.utc)
    return pa.table(
        {
            "image": pa.array([bytes([n]) for n in range(rows)], pa.binary()),
            "label": pa.array(range(rows), pa.int64()),
            "small": pa.array([n % 7 for n in range(rows)], pa.int8()),
            "real": pa.array([None if n == 3 else n / 2 for n in range(rows)], pa.float64()),
            "flag": pa.array([n % 2 == 0 for n in range(rows)]),
            "name": pa.array([None if n == 4 else f"é{n}" for n in range(rows)]),
            "day": pa.array([date(2024, 1, 1 + n) for n in range(rows)]),
            "moment": pa.array([moment] * rows, pa.timestamp("us", tz="UTC")),
            "price": pa.array([Decimal(n) / 4 for n in range(rows)], pa.decimal128(10, 2)),
            "scores": pa.array([[1.0 * n] * n for n in range(rows)], pa.list_(pa.float32())),
            "split": ["train"] * rows,
        }
    )


def test_columns_come_as_dictionaries(tmp_path):
    append(tmp_path / "t", everything(9))
    feed = DeltaFeed(tmp_path / "t", shuffle=False)
    columns, weights = next(feed.as_column_numpy(9, fill={"name": "?"}))
    assert list(columns) == list(feed.plan.schema)
    assert columns["image"][5] == b"\x05"
    assert columns["name"].tolist()[3:5] == ["é3", "?"]
    assert columns["split"].tolist() == ["train"] * 9
    assert columns["day"][2] == np.datetime64("2024-01-03")
    assert columns["moment"][0] == np.datetime64("2024-05-06T07:08:09.123456")
    assert columns["price"][3] == Decimal("0.75")
    assert columns["scores"][2] == [2.0, 2.0]
    assert np.isnan(columns["real"][3])
    assert weights.tolist() == [1] * 9


def test_times_of_a_file_with_a_zone_of_its_own_come_in_utc(tmp_path):
    moment = datetime(2024, 7, 1, 12, tzinfo=timezone.utc)

    def rows(zone: str) -> pa.Table:
        return image_rows(range(1)).append_column("at", pa.array([moment], pa.timestamp("us", tz=zone)))

    append(tmp_path / "t", rows("UTC"))
    feed = DeltaFeed(tmp_path / "t")
    file = Path(feed.plan.file_location(0))
    pq.write_table(rows("America/New_York").drop(["split"]), file)
    sizes = np.array([file.stat().st_size])
    files = replace(feed.plan.snapshot.files, sizes=sizes)
    feed.plan = replace(feed.plan, snapshot=replace(feed.plan.snapshot, files=files))
    columns, _ = next(feed.as_column_numpy(1, columns=["at"]))
    assert columns["at"][0] == np.datetime64("2024-07-01T12:00")


def test_columns_that_cannot_be_are_refused(tmp_path):
    append(tmp_path / "t", everything(6))
    feed = DeltaFeed(tmp_path / "t")
    with pytest.raises(BadRowError, match=r"null in column 'name'.*fill="):
        list(feed.as_column_numpy(3, columns=["name"]))
    with pytest.raises(InvalidArgumentError, match="has no column 'nothing'"):
        feed.as_column_numpy(3, columns=["nothing"])


def with_images(numbers, images) -> pa.Table:
    return image_rows(numbers).set_column(1, "image", pa.array(images, pa.binary()))


@pytest.fixture
def with_bad_rows(tmp_path) -> DeltaFeed:
    images = [encoded(n) for n in range(12)]
    images[2] = b""
    images[5] = None
    images[6] = images[6][:-40]
    images[9] = b"this is text"
    append(tmp_path / "t", with_images(range(12), images))
    return DeltaFeed(tmp_path / "t", shuffle=False)


def test_a_bad_row_is_an_error_that_names_its_file_and_row(with_bad_rows):
    with pytest.raises(BadRowError, match=r"row 2 of .*part-.*does not decode.*bad_rows='skip'"):
        list(with_bad_rows.as_numpy(4))
    with pytest.raises(Exception, match=r"row 2 of .*part-"):
        list(with_bad_rows.as_dataset(4))


def test_bad_rows_are_skipped_and_counted(with_bad_rows):
    for source in (
        with_bad_rows.as_dataset(5, bad_rows="skip"),
        with_bad_rows.as_numpy(5, bad_rows="skip"),
    ):
        with_bad_rows.skipped.count = 0
        with_bad_rows.skipped.first.clear()
        batches = list(source)
        assert flat(map(real, batches)) == [0, 1, 3, 4, 7, 8, 10, 11]
        assert with_bad_rows.skipped.count == 4
        skipped = [int(message.split("row ")[1].split()[0]) for message in with_bad_rows.skipped.first]
        assert sorted(skipped) == [2, 5, 6, 9]
        assert [len(weights) for _, _, weights in batches] == [4, 2, 2]


def test_images_of_another_size_are_bad_rows_unless_they_are_resized(tmp_path):
    append(tmp_path / "t", with_images(range(3), [encoded(0), encoded(1, height=30), encoded(2)]))
    feed = DeltaFeed(tmp_path / "t", shuffle=False)
    with pytest.raises(BadRowError, match=r"row 1 .* 30 x 16 pixels; resize all images with image_size"):
        list(feed.as_numpy(3))
    with pytest.raises(Exception, match=r"row 1 .* 30 x 16 pixels"):
        list(feed.as_dataset(3))
    images, _, _ = next(iter(feed.as_dataset(3, image_size=(HEIGHT, WIDTH))))
    assert np.abs(images.numpy()[1] - pixels_of(1)).max() <= 3


def of_two_sizes(location: Path, form: str) -> DeltaFeed:
    """A feed of the rows of camera b, 24 x 32 pixels each; the 20 of camera a before them are 12 x 16."""
    small, large = (HEIGHT, WIDTH), (2 * HEIGHT, 2 * WIDTH)
    sizes = [small] * 20 + [large] * 4
    rows = with_images(range(24), [encoded(n, form, *size) for n, size in enumerate(sizes)])
    for name, sides in zip(("height", "width"), zip(*sizes, strict=True), strict=True):
        rows = rows.set_column(rows.column_names.index(name), name, pa.array(sides, pa.int32()))
    rows = rows.set_column(2, "format", pa.array([form] * 24))
    append(location, rows.append_column("camera", pa.array(["a"] * 20 + ["b"] * 4)))
    return DeltaFeed(location, filters={"camera": "b"})


@pytest.mark.parametrize("form", ["jpeg", "raw_rgb"])
def test_images_have_the_size_of_the_first_one_that_the_filters_keep(tmp_path, form):
    feed = of_two_sizes(tmp_path / "t", form)
    assert feed.stored_size == (2 * HEIGHT, 2 * WIDTH)
    images, _, weights = next(feed.as_numpy(4))
    assert images.shape == (4, 2 * HEIGHT, 2 * WIDTH, 3)
    assert weights.all()
    assert next(feed.as_numpy(4, image_size=(HEIGHT, WIDTH)))[2].all()


def test_the_form_of_a_stored_image_may_be_a_partitions_value(tmp_path):
    write_deltalake(str(tmp_path / "t"), image_rows(range(4), "raw_rgb"), partition_by=["format"])
    assert next(DeltaFeed(tmp_path / "t").as_numpy(4))[0].shape == (4, HEIGHT, WIDTH, 3)


def test_rows_that_do_not_tell_their_size_are_passed_over_for_later_rows_and_files(tmp_path):
    rows = image_rows(range(4), "raw_rgb")
    append(tmp_path / "raw", rows.set_column(3, "height", pa.array([None, HEIGHT, HEIGHT, HEIGHT], pa.int32())))
    assert DeltaFeed(tmp_path / "raw", shuffle=False).stored_size == (HEIGHT, WIDTH)
    append(tmp_path / "t", image_rows(range(4)))
    append(tmp_path / "t", image_rows(range(4, 24)).drop(["image"]), schema_mode="merge")
    append(tmp_path / "t", image_rows(range(24, 28)))
    feed = DeltaFeed(tmp_path / "t", shuffle=False)
    kept = flat(real(batch) for batch in feed.as_numpy(7, bad_rows="skip"))
    assert sorted(kept) == [0, 1, 2, 3, 24, 25, 26, 27]
    assert DeltaFeed(tmp_path / "t", filters={"label": [20, 25]}).stored_size == (HEIGHT, WIDTH)


def huge_png() -> bytes:
    """The header of 20,000 x 20,000 pixels, and none of them."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_an_image_of_too_many_pixels_is_a_bad_row_and_tells_no_size(tmp_path):
    append(tmp_path / "t", with_images(range(4), [huge_png(), *(encoded(n) for n in range(1, 4))]))
    feed = DeltaFeed(tmp_path / "t", shuffle=False)
    assert feed.stored_size == (HEIGHT, WIDTH)
    with pytest.raises(BadRowError, match=r"row 0 .* does not decode"):
        list(feed.as_numpy(4))
    assert real(next(feed.as_numpy(4, bad_rows="skip", image_size=8))) == [1, 2, 3]


def test_no_image_has_to_tell_its_size_where_the_size_is_given(tmp_path):
    append(tmp_path / "t", with_images(range(20), [None] * 19 + [encoded(19)]))
    feed = DeltaFeed(tmp_path / "t", shuffle=False)
    with pytest.raises(BadRowError, match=r"none of the 16 rows .* tells the size of its image .* give image_size"):
        feed.as_numpy(20)
    assert real(next(feed.as_numpy(20, bad_rows="skip", image_size=8))) == [19]
    raw = image_rows(range(3), "raw_rgb").set_column(3, "height", pa.array([None] * 3, pa.int32()))
    append(tmp_path / "raw", raw)
    with pytest.raises(BadRowError, match="needs the row's height and width in pixels, they are None, 16"):
        list(DeltaFeed(tmp_path / "raw").as_numpy(3, image_size=8))


def test_a_row_without_a_label_is_named_or_skipped(tmp_path):
    feed = with_labels(tmp_path / "t", [0, 1, None, 3])
    with pytest.raises(BadRowError, match=r"row 2 .* has no label in column 'label'.*'skip'"):
        list(feed.as_numpy(4))
    assert real(next(feed.as_numpy(4, bad_rows="skip"))) == [0, 1, 3]
    assert feed.skipped.count == 1


def with_labels(location: Path, labels: list[int | None]) -> DeltaFeed:
    rows = image_rows(range(len(labels)))
    append(location, rows.set_column(5, "label", pa.array(labels, pa.int64())))
    return DeltaFeed(location, shuffle=False)


@pytest.mark.parametrize(
    ("label", "words"),
    [
        (2**31, r"row 1 .* has label 2147483648 in column 'label', outside -2147483648 to"),
        (-(2**31) - 1, r"row 1 .* has label -2147483649 .* what int32 holds"),
    ],
)
def test_a_label_that_int32_does_not_hold_is_a_bad_row(tmp_path, label, words):
    low, high = -(2**31), 2**31 - 1
    feed = with_labels(tmp_path / "t", [low, label, high])
    with pytest.raises(BadRowError, match=words):
        list(feed.as_numpy(4))
    images, target, weights = next(feed.as_numpy(4, bad_rows="skip", replicas=2))
    assert weights[[0, 2]].all()
    assert not weights[[1, 3]].any()
    assert not images[1].any()
    assert target.tolist() == [low, 0, high, low]
    assert next(feed.as_numpy(4, bad_rows="skip"))[2].tolist() == [1, 1]
    assert feed.skipped.count == 2


def turned(orientation: int) -> bytes:
    pixels = np.zeros((HEIGHT, WIDTH, 3), dtype=np.uint8)
    pixels[: HEIGHT // 2] = 250
    image, exif, buffer = Image.fromarray(pixels), Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    image.save(buffer, "JPEG", quality=95, exif=exif)
    return buffer.getvalue()


def with_segment(file: bytes, marker: bytes, content: bytes) -> bytes:
    return file[:2] + marker + (len(content) + 2).to_bytes(2, "big") + content + file[2:]


def turned_by_xmp() -> bytes:
    packet = (
        b'http://ns.adobe.com/xap/1.0/\0<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF '
        b'xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description '
        b'xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="3"/></rdf:RDF></x:xmpmeta>'
    )
    return with_segment(jpeg(waves(6, HEIGHT, WIDTH)), b"\xff\xe1", packet)


def turned_after_fill_bytes() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 3
    content = exif.tobytes()
    content = content if content.startswith(b"Exif") else b"Exif\0\0" + content
    return with_segment(jpeg(waves(7, HEIGHT, WIDTH)), b"\xff\xff\xff\xe1", content)


def odd_files() -> list[bytes]:
    files = [turned(3), turned(2)]
    for mode, form in (("RGBA", "PNG"), ("LA", "PNG"), ("P", "PNG"), ("CMYK", "JPEG"), ("L", "JPEG"), ("RGB", "WEBP")):
        image, buffer = Image.fromarray(pixels_of(311)), io.BytesIO()
        if "A" in mode:
            image.putalpha(Image.fromarray(np.tile(np.arange(WIDTH, dtype=np.uint8) * 15, (HEIGHT, 1))))
        image.convert(mode).save(buffer, form)
        files.append(buffer.getvalue())
    deep, buffer = (
        Image.fromarray(np.arange(HEIGHT * WIDTH, dtype=np.uint16).reshape(HEIGHT, WIDTH) * 340),
        io.BytesIO(),
    )
    deep.save(buffer, "PNG")
    return [*files, buffer.getvalue()]


def with_profile() -> bytes:
    """A JPEG whose colour profile has red and blue changed places."""
    from PIL import ImageCms

    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    tags = {bytes(profile[at : at + 4]): at + 4 for at in range(132, 132 + 12 * profile[131], 12)}
    red, blue = (slice(tags[name], tags[name] + 4) for name in (b"rXYZ", b"bXYZ"))
    profile[red], profile[blue] = profile[blue], profile[red]
    profile = profile.replace("sRGB".encode("utf-16-be"), "swap".encode("utf-16-be"))
    return jpeg(waves(5, HEIGHT, WIDTH), icc_profile=bytes(profile))


def test_odd_files_are_shown_as_ingest_and_inference_show_them(tmp_path):
    from lakelens.etl.images.codec import decode_source

    files = [*odd_files(), turned_by_xmp(), turned_after_fill_bytes(), with_profile()]
    plain = np.asarray(Image.open(io.BytesIO(files[-1])))
    assert np.abs(np.asarray(decode_source(files[-1]).image).astype(int) - plain).max() > 20
    append(tmp_path / "t", with_images(range(len(files)), files))
    for shown, data in zip(next(DeltaFeed(tmp_path / "t", shuffle=False).as_numpy(len(files)))[0], files, strict=True):
        np.testing.assert_array_equal(shown, np.asarray(decode_source(data).image, dtype=np.float32))
