"""The decoder that feed, scoring and profile share: one result whatever decodes JPEG."""

from __future__ import annotations

import numpy as np
import pytest
from etl_pictures import encoded, oriented
from PIL import Image

from lakelens.errors import ImageError
from lakelens.etl.images.stored_image import PixelDecoder, StoredImage, decode_image, size_of

pytestmark = pytest.mark.unit

NOISE = np.random.default_rng(0).integers(0, 256, (24, 40, 3), np.uint8)


def decoded(image: StoredImage, shape: tuple[int, int, int], **settings) -> np.ndarray:
    pixels = np.zeros(shape, np.uint8)
    PixelDecoder(**settings).decode(image, pixels)
    return pixels


@pytest.mark.parametrize("shape", [(24, 40, 3), (24, 40, 1), (16, 16, 3), (50, 30, 1)])
def test_simplejpeg_and_pillow_give_the_same_pixels_in_colour_and_grey_at_any_size(shape):
    image = StoredImage(encoded(Image.fromarray(NOISE)), "jpeg")
    ours, theirs = (decoded(image, shape, simplejpeg=chosen) for chosen in (True, False))
    np.testing.assert_array_equal(ours, theirs)
    assert ours.any()


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF"])
@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_the_size_is_that_of_the_image_as_it_is_shown(form, orientation):
    image = StoredImage(encoded(Image.fromarray(NOISE), form, exif=oriented(orientation)))
    shown = decode_image(image)
    assert size_of(image) == (shown.height, shown.width) == ((40, 24) if orientation == 6 else (24, 40))


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (StoredImage(None, "jpeg"), "null"),
        (StoredImage(b"", "jpeg"), "empty"),
        (StoredImage(b"text"), "not_an_image"),
        (StoredImage(NOISE.tobytes(), "raw_rgb", 24, None), "wrong_size"),
        (StoredImage(NOISE.tobytes(), "raw_rgb", 24, 0), "wrong_size"),
        (StoredImage(NOISE.tobytes(), "raw_rgb", 24, 41), "wrong_size"),
        (StoredImage(NOISE.tobytes(), "raw_rgb", "24", "40"), "wrong_size"),
    ],
)
def test_what_does_not_decode_is_an_error_with_a_reason_wherever_it_is_asked(image, reason):
    for ask in (lambda: decoded(image, (8, 8, 3)), lambda: decode_image(image), lambda: size_of(image)):
        with pytest.raises(ImageError) as caught:
            ask()
        assert caught.value.reason == reason
