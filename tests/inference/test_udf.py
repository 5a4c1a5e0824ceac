"""The rule by which the prediction UDF takes a batch for the pixels of a raw table."""

from __future__ import annotations

import pytest
from colours import image_of

from lakelens.errors import InvalidArgumentError
from lakelens.inference.udf import _require_encoded

pytestmark = pytest.mark.unit

PIXELS = bytes(range(192))


@pytest.mark.parametrize("images", [[PIXELS, PIXELS], [PIXELS, bytes(300), bytes(3000)]])
def test_a_batch_of_bare_pixels_is_a_wrong_call(images):
    with pytest.raises(InvalidArgumentError, match=rf"none of the {len(images)} images .* four columns"):
        _require_encoded(images)


@pytest.mark.parametrize(
    "images",
    [
        [],
        [b"abc"],
        [b"abc", b"defghi"],
        [PIXELS],
        [PIXELS, PIXELS[:-3]],
        [PIXELS, PIXELS[:-1]],
        [PIXELS, PIXELS, image_of("red")],
    ],
    ids=["none", "short", "all short", "alone", "one short", "no whole pixels", "one good"],
)
def test_bad_images_are_errors_of_their_rows(images):
    _require_encoded(images)
