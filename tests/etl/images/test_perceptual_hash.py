"""Rules of the perceptual hash: near pictures are near, strangers are not, and the search misses none."""

from __future__ import annotations

import io
import itertools
import tracemalloc

import numpy as np
import pytest
from etl_pictures import encoded, fit, picture
from PIL import Image, ImageEnhance

from lakelens.etl.images.perceptual_hash import MAX_DISTANCE, find_nearest, perceptual_hash

pytestmark = pytest.mark.unit


def distance(first, second):
    return sum(bin(a ^ b).count("1") for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "change",
    [
        lambda image: Image.open(io.BytesIO(encoded(image, quality=40))),
        lambda image: fit(image.resize((200, 165)), 224),
        lambda image: ImageEnhance.Contrast(image).enhance(1.1),
        lambda image: ImageEnhance.Color(image).enhance(0.5),
    ],
    ids=["compressed", "resized", "contrast", "colour"],
)
def test_a_changed_copy_is_near(seed, change):
    image = picture(seed, 400, 330)
    one, other = (perceptual_hash(fit(shown, 299)) for shown in (image, change(image)))
    assert distance(one, other) <= MAX_DISTANCE


def test_different_pictures_are_far():
    hashes = [perceptual_hash(picture(seed, 400, 330)) for seed in range(25)]
    assert min(itertools.starmap(distance, itertools.combinations(hashes, 2))) > 2 * MAX_DISTANCE


def test_a_picture_of_one_colour_has_no_hash():
    assert perceptual_hash(Image.new("RGB", (64, 64), (200, 10, 10))) is None
    noise = np.random.default_rng(0).integers(126, 129, (64, 64), dtype=np.uint8)
    assert perceptual_hash(Image.fromarray(noise)) is None


def near_copies(hashes, bits, random, most):
    """Hashes with up to so many of the given bits turned over."""
    copies = hashes.copy()
    for row in copies:
        for bit in random.choice(bits, random.integers(1, most + 1), replace=False):
            row[bit // 64] ^= np.uint64(1) << np.uint64(63 - bit % 64)
    return np.unique(np.concatenate([hashes, copies]), axis=0)


def nearest_of_all(hashes, groups):
    """What comparing all with all finds: the distance of the nearest other hash of each group, 129 for none."""
    bits = np.unpackbits(hashes.astype(">u8").view(np.uint8).reshape(-1, 16), axis=1).astype(np.int16)
    distances = 128 - bits @ bits.T - (1 - bits) @ (1 - bits).T
    np.fill_diagonal(distances, 129)
    distances[distances > MAX_DISTANCE] = 129
    return np.stack([np.where(groups[:, g], distances, 129).min(axis=1) for g in range(groups.shape[1])], axis=1)


# Above and below a wide picture all is one colour: half of the bits are equal in all hashes.
PADDED = np.arange(128)[(np.arange(128) % 64 >= 16) & (np.arange(128) % 64 < 48)]


@pytest.mark.parametrize(
    ("seed", "count", "mask", "bits", "most", "share"),
    [(8, 300, 0xFFFFFFFFFFFFFFFF, np.arange(128), 19, 0.5), (0, 600, 0x0000FFFFFFFF0000, PADDED, 8, 1)],
    ids=["whole", "padded"],
)
def test_the_search_finds_exactly_what_comparing_all_finds(seed, count, mask, bits, most, share):
    random = np.random.default_rng(seed)
    hashes = random.integers(0, 2**64, (count, 2), dtype=np.uint64) & np.uint64(mask)
    hashes = near_copies(hashes, bits, random, most)
    groups = random.random((len(hashes), 3)) < share
    found = find_nearest(hashes, groups)
    assert (found.distances == nearest_of_all(hashes, groups)).all()
    assert ((found.rows >= 0) == (found.distances <= MAX_DISTANCE)).all()
    for row, group in zip(*np.nonzero(found.rows >= 0), strict=True):
        other = found.rows[row, group]
        found_at = distance(hashes[row].tolist(), hashes[other].tolist())
        assert (found_at, groups[other, group]) == (found.distances[row, group], True)


def test_many_frames_of_one_scene_take_little_memory():
    random = np.random.default_rng(0)
    hashes = near_copies(np.zeros((700, 2), np.uint64), np.arange(128), random, 4)
    tracemalloc.start()
    found = find_nearest(hashes, np.ones((len(hashes), 2), bool))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (found.rows >= 0).all()
    assert peak < 2000 * len(hashes)
