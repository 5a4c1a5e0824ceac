"""Samples of more than 8 bits: which of them become black and white, and what is counted."""

from __future__ import annotations

import json
import struct
import zlib

import numpy as np
import pytest
from etl_pictures import encoded
from etl_poison import png_chunk
from PIL import Image

from lakelens.errors import ImageError, InvalidArgumentError
from lakelens.etl.images import colours
from lakelens.etl.images.codec import decode_source
from lakelens.etl.images.recipe import Recipe

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("values", "dtype", "depth", "shown", "notes"),
    [
        ([0, 257, 32896, 65535], "uint16", "full", [0, 1, 128, 255], ()),
        ([0, 1000, 4095], "uint16", "full", [0, 4, 16], ("dark_samples",)),
        ([0, 1000, 4096], "uint16", "full", [0, 4, 16], ()),
        ([1000, 1500, 2000], "uint16", "image", [0, 128, 255], ()),
        ([0, 2048, 4095, 60000], "uint16", (0, 4095), [0, 128, 255, 255], ()),
        ([100, 1000, 3000], "uint16", (1000, 2000), [0, 0, 255], ()),
        ([0, 0.25, 0.5], "float32", "full", [0, 64, 128], ()),
        ([0, 0.5, 1.04], "float32", "full", [0, 128, 255], ()),
        ([-0.01, 0.15, 0.3], "float32", "full", [0, 38, 76], ()),
        ([0, 0.5, 1.1], "float32", "full", [0, 0, 1], ("dark_samples",)),
        ([0, 1000, 4095], "uint16", (0, 65535), [0, 4, 16], ("dark_samples",)),
        ([0, 10, 20], "uint8", "full", [0, 10, 20], ()),
        ([0, 0.02, 0.06], "float32", "full", [0, 5, 15], ("dark_samples",)),
        ([0, 128, 260], "float32", "full", [0, 128, 255], ()),
        ([-1, 0, 1], "float32", "full", [0, 128, 255], ()),
        ([0, 500, 1000], "float32", "full", [0, 128, 255], ()),
        ([0, np.nan, 1, np.inf], "float32", "full", [0, 0, 255, 255], ()),
        ([0, 0.25, 0.5], "float32", "image", [0, 128, 255], ()),
        ([7, 7], "float32", "image", [0, 0], ()),
        ([0, 1000, 2000], "int32", "full", [0, 4, 8], ("dark_samples",)),
        ([0, 100_000, 200_000], "int32", "full", [0, 128, 255], ()),
    ],
)
def test_samples_of_more_than_8_bits_are_scaled_by_the_range_and_clipped(values, dtype, depth, shown, notes):
    found = decode_source(encoded(Image.fromarray(np.array([values], dtype)), "TIFF"), depth=depth)
    assert (np.asarray(found.image)[0, :, 0].tolist(), found.notes) == (shown, notes)


@pytest.mark.parametrize("depth", ["ful", [1], [2, 1], [0, float("nan")], ["0", "1"], 5, None])
def test_a_depth_is_a_name_or_two_numbers_in_order(depth):
    with pytest.raises(InvalidArgumentError, match=r"depth = .* give 'full', 'image', or two numbers"):
        Recipe(depth=depth)


def test_a_depth_of_two_numbers_survives_the_table():
    recipe = Recipe(depth=[0, 4095])
    assert recipe == Recipe(**json.loads(recipe.as_property())) == Recipe(depth=(0.0, 4095.0))


# PNG's numbers for what a pixel's samples are.
GREY, GREY_ALPHA, RGB, RGBA = 0, 4, 2, 6


def colour_png(samples, kind, transparent=None):
    height, width, _ = samples.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0))
    clear = b"" if transparent is None else png_chunk(b"tRNS", transparent.astype(">u2").tobytes())
    body = clear + png_chunk(b"IDAT", zlib.compress(rows)) + png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + header + body


def colour_tiff(samples, order):
    height, width, count = samples.shape
    data = samples.astype(f"{order}u2").tobytes()
    bits = struct.pack(f"{order}{count}H", *[16] * count)
    at = 8 + 2 + 12 * 9 + 4
    short, long = (lambda value: struct.pack(f"{order}HH", value, 0)), (lambda value: struct.pack(f"{order}I", value))
    tags = [
        (256, 3, 1, short(width)), (257, 3, 1, short(height)), (258, 3, count, long(at)), (259, 3, 1, short(1)),
        (262, 3, 1, short(2)), (273, 4, 1, long(at + len(bits))), (277, 3, 1, short(count)), (278, 3, 1, short(height)),
        (279, 4, 1, long(len(data))),
    ]  # fmt: skip
    entries = b"".join(struct.pack(f"{order}HHI", *tag[:3]) + tag[3] for tag in tags)
    head = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HIH", 42, 8, len(tags))
    return head + entries + struct.pack(f"{order}I", 0) + bits + data


SIXTEEN_BITS = {
    "png in colour": lambda samples: colour_png(samples, RGB),
    "png in colour with alpha": lambda samples: colour_png(np.dstack([samples, np.full((4, 5), 65535)]), RGBA),
    "grey png with alpha": lambda samples: colour_png(np.dstack([samples[..., 0], np.full((4, 5), 65535)]), GREY_ALPHA),
    "tiff": lambda samples: colour_tiff(samples, "<"),
    "tiff of another order": lambda samples: colour_tiff(samples, ">"),
}


@pytest.mark.parametrize("strip", [15, 1000], ids=["in strips", "at once"])
@pytest.mark.parametrize("name", SIXTEEN_BITS)
def test_colours_of_16_bits_are_scaled_as_grey_is(name, strip, monkeypatch):
    monkeypatch.setattr(colours, "_STRIP", strip)  # pixels: three rows, and the last one
    samples = np.random.default_rng(0).integers(100, 4000, (4, 5, 3)).astype(np.uint16)
    if "grey" in name:
        samples[...] = samples[..., :1]
    data = SIXTEEN_BITS[name](samples)
    own = float(samples.min()), float(samples.max())
    for depth, (low, high) in {"full": (0.0, 65535.0), "image": own, (0.0, 4095.0): (0.0, 4095.0)}.items():
        found = decode_source(data, depth=depth)
        wanted = np.rint((samples - low) * 255 / (high - low))
        assert np.abs(np.asarray(found.image) - wanted).max() == 0
        assert found.notes == (("dark_samples",) if depth == "full" else ())
        assert not found.is_plain


@pytest.mark.parametrize(("kind", "count"), [(RGB, 3), (GREY, 1)])
def test_the_transparent_colour_of_16_bits_is_compared_with_both_bytes(kind, count):
    samples = np.full((4, 5, count), 0x1200, np.uint16)
    samples[0, 0] = 0x1201
    shown = np.asarray(decode_source(colour_png(samples, kind, samples[0, 0])).image)
    assert shown[0, 0].tolist() == [255, 255, 255]
    assert shown[0, 1].tolist() == [18, 18, 18]


def test_16_bits_in_planes_of_their_own_are_refused_with_a_way_out():
    data = bytearray(colour_tiff(np.zeros((4, 5, 3), np.uint16), "<"))
    entry = data.index(struct.pack("<HHI", 278, 3, 1))
    data[entry : entry + 12] = struct.pack("<HHIHH", 284, 3, 1, 2, 0)
    with pytest.raises(ImageError, match=r"PlanarConfiguration 2\); save it with interleaved colours") as error:
        decode_source(bytes(data))
    assert error.value.reason == "unsupported"
