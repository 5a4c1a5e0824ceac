"""An image whose pixels are whole is stored, whatever else its file lacks or has too much of."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from etl_pictures import encoded, oriented
from PIL import Image, ImageCms
from PIL.PngImagePlugin import PngInfo

from lakelens.errors import ImageError
from lakelens.etl.images.codec import decode_source, read_size
from lakelens.etl.images.isolated_decoder import make_stored_image
from lakelens.etl.images.recipe import Limits, Recipe

pytestmark = pytest.mark.unit

PIXELS = np.random.default_rng(0).integers(0, 256, (24, 40, 3), np.uint8)
PICTURE = Image.fromarray(PIXELS)


def texts(count, size, *, after_idat=False, kind=b"zTXt"):
    """A PNG with texts; zlib packs them to a thousandth."""
    info = PngInfo()
    for number in range(count):
        info.add_text(f"k{number}", "a" * size, zip=kind == b"zTXt")
    data = encoded(PICTURE, "PNG", pnginfo=info)
    if not after_idat:
        return data
    start, end = data.index(b"zTXt") - 4, data.index(b"IDAT") - 4
    return data[:start] + data[end:-12] + data[start:end] + data[-12:]


PNGS = {
    "a long text": lambda: texts(1, 2 << 20),
    "a long text that is not packed": lambda: texts(1, 2 << 20, kind=b"tEXt"),
    "a long text after the pixels": lambda: texts(1, 2 << 20, after_idat=True),
    "many texts": lambda: texts(70, 1_000_000),
    "a large profile": lambda: encoded(PICTURE, "PNG", icc_profile=bytes(2 << 20)),
}


@pytest.mark.parametrize("name", PNGS)
def test_metadata_costs_no_png_its_pixels(name):
    data = PNGS[name]()
    decoded = decode_source(data)
    assert np.array_equal(np.asarray(decoded.image), PIXELS)
    assert read_size(data) == PIXELS.shape[:2]
    assert decoded.notes in ((), ("metadata_skipped",))


def test_a_png_without_its_texts_is_still_turned_and_not_kept_as_it_is():
    info = PngInfo()
    info.add_text("k", "a" * (2 << 20), zip=True)
    data = encoded(PICTURE, "PNG", pnginfo=info, exif=oriented(6))
    decoded = decode_source(data)
    assert (decoded.orientation, decoded.notes) == (6, ("metadata_skipped",))
    assert np.array_equal(np.asarray(decoded.image), np.rot90(PIXELS, -1))
    stored = make_stored_image(texts(1, 2 << 20), Recipe(store="original", resize="none"), Limits())
    assert len(stored.image) < 10_000
    assert stored.notes == ("metadata_skipped",)


@pytest.mark.parametrize("cut", [1, 2])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}, {"quality": 5}])
@pytest.mark.parametrize("grey", [False, True])
def test_a_jpeg_that_lacks_only_its_end_marker_is_whole(cut, options, grey):
    data = encoded(PICTURE.convert("L") if grey else PICTURE, **options)
    decoded = decode_source(data[:-cut])
    assert decoded.notes == ("end_marker_missing",)
    assert np.array_equal(np.asarray(decoded.image), np.asarray(decode_source(data).image))
    assert read_size(data[:-cut]) == PIXELS.shape[:2]


@pytest.mark.parametrize("share", [0.3, 0.7, 0.95])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("target_size", [None, 4])
def test_a_jpeg_that_lacks_rows_is_truncated_although_it_has_an_end_marker(share, mode, target_size, monkeypatch):
    image = PICTURE.resize((160, 96)).convert(mode)
    data = encoded(image)
    with pytest.raises(ImageError) as error:
        decode_source(data[: int(len(data) * share)] + b"\xff\xd9", target_size=target_size)
    assert error.value.reason == "truncated"
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    assert decode_source(data[: int(len(data) * share)] + b"\xff\xd9").notes == ()  # which nothing else tells of
    monkeypatch.undo()
    grey = encoded(Image.new(mode, (160, 96), (128,) * len(image.getbands()) if mode != "L" else 128))
    odd = grey.replace(b"JFIF\0\1\1", b"JFIF\0\3\1")  # of which libjpeg warns
    for whole in (grey, odd):
        assert decode_source(whole, target_size=target_size).notes == ()  # which is what fills up missing rows


def test_a_jpeg_that_lacks_its_last_rows_is_truncated_where_rows_share_their_colours():
    picture = Image.fromarray(np.random.default_rng(1).integers(0, 256, (241, 320, 3), np.uint8))
    data = encoded(picture, subsampling="4:2:0")
    for cut in range(int(len(data) * 0.9), int(len(data) * 0.98), 97):
        with pytest.raises(ImageError) as error:
            decode_source(data[:cut] + b"\xff\xd9")
        assert error.value.reason == "truncated"


@pytest.mark.parametrize("dtype", ["uint16", "float32"])
def test_zero_is_white_where_a_tiff_says_so(dtype):
    grey = np.linspace(0, 60_000, 24 * 40).reshape(24, 40).astype(dtype)
    shown = {photometric: encoded(Image.fromarray(grey), "TIFF", tiffinfo={262: photometric}) for photometric in (0, 1)}
    white, black = (np.asarray(decode_source(shown[photometric]).image).astype(int) for photometric in (0, 1))
    assert np.array_equal(white, 255 - black)
    assert white[0, 0, 0] == 255
    blank = encoded(Image.fromarray(np.zeros((4, 4), np.uint16)), "TIFF", tiffinfo={262: 0})
    assert decode_source(blank).notes == ()  # it is white


@pytest.mark.parametrize("kind", [b"pHYs", b"tIME", b"gAMA", b"sRGB", b"cHRM", b"bKGD", b"eXIf", b"zzZz"])
def test_a_damaged_chunk_that_pixels_do_not_need_costs_no_png_its_pixels(kind):
    whole = encoded(PICTURE, "PNG", dpi=(72, 72))
    position = whole.index(b"IDAT") - 4
    damaged = whole[:position] + (2).to_bytes(4, "big") + kind + b"ab" + b"\0\0\0\0" + whole[position:]
    decoded = decode_source(damaged)
    assert np.array_equal(np.asarray(decoded.image), PIXELS)
    assert decoded.notes in ((), ("metadata_skipped",))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_an_image_that_is_transparent_everywhere_shows_its_colours(mode):
    if mode == "P":
        data = encoded(PICTURE.convert("P"), "PNG", transparency=bytes(256))
        expected = PICTURE.convert("P").convert("RGB")
    else:
        image = PICTURE.convert(mode)
        expected = image.convert("RGB")
        image.putalpha(0)
        data = encoded(image, "PNG")
    decoded = decode_source(data)
    assert decoded.notes == ("alpha_ignored",)
    assert np.array_equal(np.asarray(decoded.image), np.asarray(expected))


@pytest.mark.parametrize("linear", [True, False])
def test_a_profile_that_is_called_linear_srgb_is_applied(linear):
    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    if linear:  # its curves become the identity: their parameters are of a gamma of 1
        at = profile.index(b"para")
        profile[at : at + 16] = b"para" + bytes(4) + b"\0\0\0\0" + (1 << 16).to_bytes(4, "big")
    data = encoded(Image.new("RGB", (2, 2), (55, 55, 55)), "PNG", icc_profile=bytes(profile))
    assert np.asarray(decode_source(data).image)[0, 0, 0] == (pytest.approx(128, abs=3) if linear else 55)
