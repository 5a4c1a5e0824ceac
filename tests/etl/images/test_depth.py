"""Samples of more than 8 bits: which of them become black and white, and what is counted."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from PIL import Image

from lakelens.errors import InvalidArgumentError
from lakelens.etl.images.codec import decode_source
from lakelens.etl.images.recipe import Recipe

pytestmark = pytest.mark.unit


def decoded(values, dtype, depth="full"):
    samples = np.array([values], dtype)
    buffer = io.BytesIO()
    Image.fromarray(samples).save(buffer, "TIFF")
    found = decode_source(buffer.getvalue(), depth=depth)
    return np.asarray(found.image)[0, :, 0].tolist(), found.notes


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
    assert decoded(values, dtype, depth) == (shown, notes)


def test_one_overshoot_gives_no_image_another_scale():
    usual, _ = decoded([0, 0.5, 1.0], "float32")
    assert decoded([0, 0.5, 1.02], "float32")[0] == usual


@pytest.mark.parametrize("depth", ["ful", [1], [2, 1], [0, float("nan")], ["0", "1"], 5, None])
def test_a_depth_is_a_name_or_two_numbers_in_order(depth):
    with pytest.raises(InvalidArgumentError, match=r"depth = .* give 'full', 'image', or two numbers"):
        Recipe(depth=depth)


def test_a_depth_of_two_numbers_survives_the_table():
    recipe = Recipe(depth=[0, 4095])
    assert recipe == Recipe(**json.loads(recipe.as_property())) == Recipe(depth=(0.0, 4095.0))
