"""The pixels of a feed: the same as arrays and datasets, and those that ingest, scoring and the profile see."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from feed_tables import HEIGHT, WIDTH, append, changed, colour_of, flat, image_rows, pixels_of, real, write_layout
from PIL import Image

from lakelens import DeltaFeed
from lakelens.etl.images import stored_image
from lakelens.etl.images.codec import decode_source
from lakelens.etl.images.perceptual_hash import decode_small
from lakelens.etl.images.stored_image import PixelDecoder, StoredImage
from lakelens.inference.model.predictor import StoredRows, decode_rows

pytestmark = pytest.mark.tensorflow


def test_arrays_and_datasets_give_the_same_pixels_of_each_stored_form(tmp_path):
    for n, form in enumerate(("jpeg", "raw_rgb", "png")):
        append(tmp_path / "t", image_rows(range(5 * n, 5 * n + 5), form))
    feed = DeltaFeed(tmp_path / "t")
    for dtype in ("float32", "uint8"):
        dataset = feed.as_dataset(4, 0, 1, 2, dtype=dtype)
        assert [tuple(spec.shape) for spec in dataset.element_spec] == [(None, HEIGHT, WIDTH, 3), (None,), (None,)]
        assert [spec.dtype.name for spec in dataset.element_spec] == [dtype, "int32", "float32"]
        for arrays, tensors in zip(feed.as_numpy(4, 0, 1, 2, dtype=dtype), dataset, strict=True):
            for mine, theirs in zip(arrays, tensors, strict=True):
                np.testing.assert_array_equal(mine, theirs.numpy(), strict=True)
            for image, label in zip(*arrays[:2], strict=True):
                assert np.abs(image - np.array(colour_of(label))).max() <= (4 if label < 5 else 0)
    append(tmp_path / "t", changed(image_rows([15]), image=[b"this is text"]))
    skipping = DeltaFeed(tmp_path / "t").as_dataset(16, bad_rows="skip")
    assert [len(weights) for _, _, weights in skipping] == [15]


def test_numpy_batches_need_neither_tensorflow_nor_spark(tmp_path):
    code = (
        "import sys; from lakelens import DeltaFeed; "
        f"feed = DeltaFeed({str(write_layout(tmp_path / 't', [30, 13]))!r}); "
        "print(sum(w.sum() for _, _, w in feed.as_numpy(8)), 'tensorflow' in sys.modules, 'pyspark' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.split() == ["43.0", "False", "False"]


def saved(image: Image.Image, form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def jpeg(pixels: np.ndarray, **options: Any) -> bytes:
    return saved(Image.fromarray(pixels), "JPEG", **options)


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
    append(tmp_path / "t", image_rows(range(6)))
    monkeypatch.setattr(stored_image, "decode_source", None)  # Pillow's way
    assert sorted(flat(map(real, DeltaFeed(tmp_path / "t").as_numpy(3)))) == list(range(6))


def test_raw_pixels_of_mixed_sizes_are_fed_scored_and_profiled_at_each_rows_own_size(tmp_path):
    sizes = [(48, 64), (64, 48), (32, 96)]  # all of 9,216 bytes
    pixels = [waves(number, *size) for number, size in enumerate(sizes)]
    heights, widths = zip(*sizes, strict=True)
    stored = {"image": [image.tobytes() for image in pixels], "format": ["raw_rgb"] * 3}
    rows = changed(image_rows(range(3)), **stored, height=heights, width=widths)
    append(tmp_path / "t", rows)
    wanted = [np.asarray(Image.fromarray(image).resize((40, 20), Image.Resampling.BILINEAR)) for image in pixels]
    feed = DeltaFeed(tmp_path / "t", shuffle=False)
    np.testing.assert_array_equal(next(feed.as_numpy(3, image_size=(20, 40), dtype="uint8"))[0], wanted)
    scored = np.zeros((3, 20, 40, 3), np.uint8)
    columns = (rows[name].to_pylist() for name in ("image", "format", "height", "width"))
    assert decode_rows(StoredRows(*columns), scored, PixelDecoder()) == [None] * 3
    np.testing.assert_array_equal(scored, wanted)
    for row, image in zip(rows.to_pylist(), pixels, strict=True):
        png = {"image": saved(Image.fromarray(image), "PNG"), "format": "png"}
        np.testing.assert_array_equal(decode_small(row).image, decode_small(png).image)


def turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return jpeg(waves(8, HEIGHT, WIDTH), exif=exif)


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
        image = Image.fromarray(pixels_of(311))
        if "A" in mode:
            image.putalpha(Image.fromarray(np.tile(np.arange(WIDTH, dtype=np.uint8) * 15, (HEIGHT, 1))))
        files.append(saved(image.convert(mode), form))
    deep = np.arange(HEIGHT * WIDTH, dtype=np.uint16).reshape(HEIGHT, WIDTH) * 340
    return [*files, saved(Image.fromarray(deep), "PNG")]


def with_profile() -> bytes:
    """A JPEG whose colour profile has red and blue changed places."""
    from PIL import ImageCms

    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    tags = {bytes(profile[at : at + 4]): at + 4 for at in range(132, 132 + 12 * profile[131], 12)}
    red, blue = (slice(tags[name], tags[name] + 4) for name in (b"rXYZ", b"bXYZ"))
    profile[red], profile[blue] = profile[blue], profile[red]
    profile = profile.replace("sRGB".encode("utf-16-be"), "swap".encode("utf-16-be"))
    return jpeg(waves(5, HEIGHT, WIDTH), icc_profile=bytes(profile))


def test_odd_files_are_shown_as_ingest_shows_them():
    files = [*odd_files(), turned_by_xmp(), turned_after_fill_bytes(), with_profile()]
    plain = np.asarray(Image.open(io.BytesIO(files[-1])))
    assert np.abs(np.asarray(decode_source(files[-1]).image).astype(int) - plain).max() > 20
    for data in files:
        wanted = np.asarray(decode_source(data).image)
        shown = np.zeros_like(wanted)
        PixelDecoder().decode(StoredImage(data), shown)
        np.testing.assert_array_equal(shown, wanted)


def test_images_are_resized_as_inference_resizes_them(tmp_path):
    files = [jpeg(waves(number)) for number in range(3)]
    append(tmp_path / "t", changed(image_rows(range(3)), image=files))
    feed = DeltaFeed(tmp_path / "t", shuffle=False)
    for size in ((12, 16), (70, 90)):
        ours, _, _ = next(feed.as_numpy(3, image_size=size, dtype="uint8"))
        theirs = np.zeros((3, *size, 3), dtype=np.uint8)
        assert decode_rows(StoredRows(files), theirs, PixelDecoder()) == [None] * 3
        np.testing.assert_array_equal(ours, theirs)
