from __future__ import annotations

import io
import json

import numpy as np
import pytest
from etl_pictures import as_held, decode, encoded, fit, oriented, picture
from etl_poison import png_that_claims
from PIL import Image, ImageCms, JpegImagePlugin

from lakelens.errors import ImageError, InvalidArgumentError
from lakelens.etl.images.codec import FORMATS, decode_source, upright
from lakelens.etl.images.colours import RESAMPLINGS, encode_jpeg, to_rgb
from lakelens.etl.images.isolated_decoder import make_stored_image
from lakelens.etl.images.recipe import RECIPE_PROPERTY, Limits, Recipe
from lakelens.etl.quarantine import REASONS

pytestmark = pytest.mark.unit


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("RGB")).astype(int)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("file_format", ["PNG", "TIFF", "WEBP", "JPEG"])
def test_exif_orientations_show_identical_pixels(orientation, file_format):
    straight = picture(width=64, height=48)
    options = {"WEBP": {"lossless": True}, "JPEG": {"quality": 100, "subsampling": 0}}.get(file_format, {})
    data = encoded(as_held(straight, orientation), file_format, exif=oriented(orientation), **options)
    source = decode_source(data)
    assert (source.orientation, source.width, source.height) == (orientation, *straight.size)
    assert source.image.size == straight.size
    assert np.abs(pixels(source.image) - pixels(straight)).max() <= (11 if file_format == "JPEG" else 0)


def test_an_orientation_outside_1_to_8_changes_nothing():
    image = picture()
    for value in (0, 9, 255, -1):
        assert upright(image, value) is image


def two_pixels(first, rest, mode="RGBA"):
    """An image of one colour but for its first pixel."""
    image = Image.new(mode, (4, 4), rest)
    image.putpixel((0, 0), first)
    return image


def animation(file_format):
    red, blue = Image.new("RGB", (4, 4), "red"), Image.new("RGB", (4, 4), "blue")
    options = {"lossless": True} if file_format == "WEBP" else {}
    return encoded(red, file_format, save_all=True, append_images=[blue], **options)


def one_colour(*colour):
    return np.full((4, 4, 3), colour)


GREYS = np.repeat(np.arange(256).reshape(16, 16, 1), 3, axis=2)
DEEP = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
BLACK_ON_WHITE = pixels(two_pixels((0, 0, 0), (255, 255, 255), "RGB"))
CLEAR = two_pixels((0, 0, 0, 255), (255, 0, 0, 0))
PLAIN_JPEG = encoded(picture(), "JPEG")
BROKEN_EXIF = encoded(picture(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff garbage")
SEE_THROUGH = encoded(Image.new("RGB", (4, 4), (9, 9, 9)), "PNG", transparency=(9, 9, 9))


@pytest.mark.parametrize(
    ("data", "shown", "tolerance"),
    [
        pytest.param(encoded(picture().convert("CMYK"), "TIFF"), pixels(picture()), 2, id="CMYK"),
        pytest.param(encoded(Image.fromarray(DEEP), "PNG"), GREYS, 1, id="16 bits of PNG"),
        pytest.param(encoded(two_pixels(0, 1, "1"), "PNG"), BLACK_ON_WHITE, 0, id="1 bit"),
        pytest.param(encoded(CLEAR, "PNG"), BLACK_ON_WHITE, 0, id="RGBA over white"),
        pytest.param(encoded(CLEAR.convert("LA"), "PNG"), BLACK_ON_WHITE, 0, id="LA over white"),
        pytest.param(encoded(CLEAR.quantize(8), "PNG"), BLACK_ON_WHITE, 0, id="a palette over white"),
        pytest.param(encoded(Image.new("RGBA", (4, 4), (0, 0, 0, 128)), "PNG"), one_colour(127), 1, id="half clear"),
        pytest.param(SEE_THROUGH, one_colour(9), 0, id="nothing but a clear colour"),
        *[pytest.param(animation(name), one_colour(255, 0, 0), 0, id=name) for name in ("GIF", "WEBP", "PNG", "TIFF")],
        pytest.param(encoded(picture(), "PNG", icc_profile=b"none"), pixels(picture()), 0, id="a broken profile"),
        pytest.param(BROKEN_EXIF, pixels(decode(PLAIN_JPEG)), 0, id="a broken EXIF"),
    ],
)
def test_every_mode_is_shown_as_rgb_over_white_in_its_first_frame(data, shown, tolerance):
    assert np.abs(pixels(decode(data)) - shown).max() <= tolerance


def test_big_endian_sixteen_bits_are_scaled_too():
    image = Image.frombytes("I;16B", (16, 16), DEEP.astype(">u2").tobytes())
    assert np.abs(pixels(to_rgb(image)[0]) - GREYS).max() <= 1


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK", "P"])
@pytest.mark.parametrize(
    "profile",
    [b"none", bytes(200), ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()],
    ids=["none", "empty", "LAB"],  # a profile has the time of its creation, by which each process would call it
)
def test_a_colour_profile_that_is_none_or_of_other_colours_is_ignored_and_counted(mode, profile):
    kind = "TIFF" if mode == "CMYK" else "PNG"
    decoded = decode_source(encoded(picture().convert(mode), kind, icc_profile=profile))
    assert decoded.notes == ("profile_ignored",)


def test_a_palette_of_srgb_colours_is_not_counted():
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    assert decode_source(encoded(picture().convert("P"), "PNG", icc_profile=srgb)).notes == ()


def test_scaled_decoding_is_used_for_large_jpegs_and_shows_no_difference():
    large = picture(width=1600, height=1200)
    data = encoded(large, quality=95)
    scaled = decode_source(data, target_size=150)
    assert scaled.image.size == (400, 300)
    assert (scaled.width, scaled.height) == (1600, 1200)
    whole = fit(decode(data), 150)
    assert np.abs(pixels(fit(scaled.image, 150)) - pixels(whole)).mean() < 1


def test_fit_pads_evenly_crop_fills_the_square_and_stretch_takes_everything():
    padded = pixels(fit(Image.new("RGB", (40, 20), "black"), 100))
    assert padded.shape == (100, 100, 3)
    assert (padded[:25] == 255).all()
    assert (padded[25:75] == 0).all()
    assert (padded[75:] == 255).all()
    image = Image.new("RGB", (40, 20), "black")
    image.paste("red", (0, 0, 10, 20))
    assert (pixels(fit(image, 100, "crop"))[:, 10:, 0] < 5).all()
    assert (pixels(fit(image, 100, "stretch"))[:, :20, 0] > 250).all()
    assert fit(image, 100, "none").size == (40, 20)
    for extreme in ((1, 1), (5000, 1)):
        assert fit(Image.new("RGB", extreme), 299).size == (299, 299)


def reason_of(data: bytes, **options: int) -> str:
    with pytest.raises(ImageError) as caught:
        decode(data, **options)
    assert caught.value.reason in REASONS
    assert str(caught.value)
    return caught.value.reason


BOMB = png_that_claims(60_000, 60_000)
NO_NUMBER = encoded(Image.fromarray(np.full((4, 4), np.nan, np.float32)), "TIFF")
PNG = encoded(picture(), "PNG")


@pytest.mark.parametrize(
    ("data", "reason", "words"),
    [
        (b"", "empty", "no bytes"),
        *[(text, "not_an_image", ".") for text in (b"x", b"hello, this is text\n" * 50, bytes(500), b"<svg/>")],
        (b"%PDF-1.4\n", "not_an_image", "."),
        (NO_NUMBER, "corrupt", "no sample of the image is a finite number"),
        (PNG.replace(b"IHDR", b"IH\0R"), "corrupt", "broken PNG file"),
        (PNG.replace(b"IDAT", b"ID\0T"), "corrupt", "broken PNG file"),
        (BOMB, "too_many_pixels", r"^3600000000 pixels are more than the 100000000 .* \(max_pixels\)$"),
    ],
    ids=range(10),
)
def test_a_file_that_shows_no_image_is_refused_with_its_reason(data, reason, words):
    with pytest.raises(ImageError, match=words):
        decode(data)
    assert reason_of(data) == reason


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "GIF", "TIFF", "WEBP", "BMP"])
def test_truncated_at_ten_lengths_is_an_error_with_a_reason(file_format):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8))
    data = encoded(noise, file_format)
    found = [reason_of(data[: len(data) * tenth // 10]) for tenth in range(10)]
    assert set(found) <= {"empty", "not_an_image", "truncated", "corrupt"}
    assert file_format not in ("JPEG", "PNG") or set(found[5:]) == {"truncated"}


HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(500)


@pytest.mark.skipif("HEIF" in FORMATS, reason="pillow-heif is installed")
def test_a_heic_file_is_unsupported_and_says_what_decodes_it():
    assert reason_of(HEIC) == "unsupported"
    with pytest.raises(ImageError, match=r"lakelens\[heif\]"):
        decode(HEIC)


@pytest.mark.skipif("HEIF" not in FORMATS, reason="needs pillow-heif: pip install 'lakelens[heif]'")
def test_a_heic_file_is_decoded_upright_where_pillow_heif_is_installed():
    assert decode(encoded(picture(width=60, height=40), "HEIF", exif=oriented(6).tobytes())).size == (40, 60)
    assert reason_of(HEIC) == "corrupt"


@pytest.mark.skipif("AVIF" not in FORMATS, reason="Pillow decodes AVIF since 11.3")
def test_an_avif_file_is_decoded():
    assert decode(encoded(picture(width=60, height=40), "AVIF")).size == (60, 40)


@pytest.mark.parametrize("file_format", ["PNG", "TIFF", "GIF", "JPEG"])
def test_a_limit_beyond_pillows_own_is_the_one_that_counts(file_format, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    data = encoded(picture(width=40, height=40), file_format)
    assert decode(data, max_pixels=1600).size == (40, 40)
    assert reason_of(data, max_pixels=1599) == "too_many_pixels"
    assert Image.MAX_IMAGE_PIXELS == 100


def test_stored_forms_hold_what_they_say_and_jpegs_have_the_chroma_of_the_recipe():
    data = encoded(picture(width=80, height=60))
    raw = make_stored_image(data, Recipe(size=32, store="raw_rgb"), Limits())
    assert (raw.format, len(raw.image)) == ("raw_rgb", 32 * 32 * 3)
    np.testing.assert_array_equal(
        np.frombuffer(raw.image, np.uint8).reshape(32, 32, 3), np.asarray(fit(decode(data), 32))
    )
    jpeg = make_stored_image(data, Recipe(size=32), Limits())
    assert (jpeg.format, Image.open(io.BytesIO(jpeg.image)).size) == ("jpeg", (32, 32))
    assert jpeg.image == encode_jpeg(fit(decode(data), 32))
    for number, subsampling in enumerate(("4:4:4", "4:2:2", "4:2:0")):
        stored = make_stored_image(data, Recipe(size=64, subsampling=subsampling), Limits())
        assert JpegImagePlugin.get_sampling(Image.open(io.BytesIO(stored.image))) == number


@pytest.mark.parametrize("name", ["subsampling", "resample"])
def test_a_table_from_before_a_choice_was_there_has_its_default(name):
    before = json.loads(Recipe().as_property())
    del before[name]
    assert Recipe.of_table({RECIPE_PROPERTY: json.dumps(before)}, "t") == Recipe()


def test_a_recipe_chooses_the_filter_of_its_scaling():
    source = picture(width=90, height=70)
    data = encoded(source, "PNG")
    shown = set()
    for resample in RESAMPLINGS:
        recipe = Recipe(size=32, resize="stretch", resample=resample, store="raw_rgb")
        stored = make_stored_image(data, recipe, Limits())
        assert stored.image == source.resize((32, 32), Image.Resampling[resample.upper()], reducing_gap=3.0).tobytes()
        shown.add(stored.image)
    assert len(shown) == len(RESAMPLINGS)


def test_original_keeps_the_bytes_when_any_decoder_shows_them_alike_and_else_every_pixel():
    recipe = Recipe(store="original")
    for file_format in ("JPEG", "PNG"):
        data = encoded(picture(), file_format)
        stored = make_stored_image(data, recipe, Limits())
        assert (stored.image, stored.format, stored.width, stored.height) == (data, file_format.lower(), 60, 40)
    for data in (
        encoded(picture(), "JPEG", exif=oriented(6)),
        encoded(picture(), "BMP"),
        encoded(picture().convert("CMYK")),
        encoded(picture().convert("1"), "PNG"),
    ):
        stored = make_stored_image(data, recipe, Limits())
        assert (stored.format, stored.image == data) == ("png", False)
        np.testing.assert_array_equal(pixels(Image.open(io.BytesIO(stored.image))), pixels(decode(data)))
        assert (stored.width, stored.height) == decode(data).size


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"size": 0}, ["size", "0"]),
        ({"size": 2.5}, ["size = 2.5"]),
        ({"size": True}, ["size = True"]),
        ({"size": 30_000}, ["size = 30000", "from 1 to 10000"]),
        ({"store": "webp"}, ["store", "'webp'", "raw_rgb"]),
        ({"quality": 101}, ["quality", "101", "100"]),
        ({"subsampling": "4:1:0"}, ["subsampling", "'4:1:0'", "4:4:4"]),
        ({"split_seed": 1.5}, ["split_seed", "1.5"]),
        ({"splits": {"a": 0.5}}, ["0.5", "sum to 1"]),
        ({"resize": "blur"}, ["resize", "'blur'"]),
        ({"resample": "nearest"}, ["resample", "'nearest'", "lanczos", "box"]),
    ],
)
def test_a_recipe_that_makes_no_sense_is_refused(changes, words):
    with pytest.raises(InvalidArgumentError) as caught:
        Recipe().with_changes(**changes)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("name", ["max_bytes", "max_pixels", "timeout_s", "memory_bytes"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), "1", None])
def test_limits_that_make_no_sense_are_refused(name, value):
    with pytest.raises(InvalidArgumentError, match=name):
        Limits(**{name: value})
