"""Rules of the perceptual hash: near pictures are near, strangers are not, and the search misses none."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from lakelens.errors import InvalidArgumentError
from lakelens.etl.images import fit
from lakelens.etl.phash import DEFAULT_MAX_DISTANCE, find_near_pairs, perceptual_hash

pytestmark = pytest.mark.unit


def picture(seed):
    """A smooth random landscape of some contrasts: what a photograph is to a gradient hash."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (7, 9, 3), dtype=np.uint8))
    return small.resize((400, 330), Image.Resampling.BICUBIC)


def distance(one, other):
    first, second = perceptual_hash(one), perceptual_hash(other)
    return sum(bin(a ^ b).count("1") for a, b in zip(first, second, strict=True))


def compressed(image, quality):
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(io.BytesIO(buffer.getvalue()))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "change",
    [
        lambda image: compressed(image, 40),
        lambda image: fit(image.resize((200, 165)), 224),
        lambda image: ImageEnhance.Contrast(image).enhance(1.1),
        lambda image: ImageEnhance.Color(image).enhance(0.5),
    ],
    ids=["compressed", "resized", "contrast", "colour"],
)
def test_a_changed_copy_is_near(seed, change):
    reference = fit(picture(seed), 299)
    changed = change(picture(seed))
    assert distance(reference, fit(changed, 299)) <= DEFAULT_MAX_DISTANCE


def test_different_pictures_are_far():
    distances = [distance(picture(a), picture(b)) for a, b in itertools.combinations(range(25), 2)]
    assert min(distances) > 2 * DEFAULT_MAX_DISTANCE


def test_a_picture_of_one_colour_has_no_hash():
    assert perceptual_hash(Image.new("RGB", (64, 64), (200, 10, 10))) is None
    noise = np.random.default_rng(0).integers(126, 129, (64, 64), dtype=np.uint8)
    assert perceptual_hash(Image.fromarray(noise)) is None


@pytest.mark.parametrize("max_distance", [0, 3, 8, 15])
def test_the_search_finds_exactly_what_comparing_all_finds(max_distance):
    rng = np.random.default_rng(max_distance)
    hashes = rng.integers(0, 2**64, (300, 2), dtype=np.uint64)
    copies = hashes[rng.integers(0, 300, 300)].copy()
    for row in copies:
        for bit in rng.choice(128, rng.integers(1, 20), replace=False):
            row[bit // 64] ^= np.uint64(1) << np.uint64(bit % 64)
    hashes = np.unique(np.concatenate([hashes, copies]), axis=0)
    expected = set()
    for i, j in itertools.combinations(range(len(hashes)), 2):
        bits = sum(bin(int(a) ^ int(b)).count("1") for a, b in zip(hashes[i], hashes[j], strict=True))
        if bits <= max_distance:
            expected.add((i, j, bits))
    found = find_near_pairs(hashes, max_distance)
    assert set(zip(*(column.tolist() for column in found), strict=True)) == expected


@pytest.mark.parametrize("rows", [0, 1])
def test_none_or_one_hash_has_no_pairs(rows):
    assert len(find_near_pairs(np.zeros((rows, 2), np.uint64)).first) == 0


@pytest.mark.parametrize("max_distance", [-1, 16])
def test_a_distance_that_the_search_is_not_made_for_is_refused(max_distance):
    with pytest.raises(InvalidArgumentError, match="0 and 15"):
        find_near_pairs(np.zeros((2, 2), np.uint64), max_distance)
