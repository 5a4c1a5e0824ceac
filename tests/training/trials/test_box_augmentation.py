"""Rules of augmentation: boxes stay on the pixels that they mark, whatever the draw."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakelens.errors import InvalidHyperparameters

pytestmark = pytest.mark.tensorflow
HEIGHT, WIDTH = 60, 90
NOTHING = {"flip": False, "shift": 0.0, "scale": 0.0, "crop": 0.0, "colour": 0.0}


def augmentation(**rules):
    from lakelens.training.trials.box_augmentation import Augmentation

    return Augmentation(**rules)


def marked(boxes: list[tuple[int, ...]]) -> tuple[np.ndarray, np.ndarray]:
    """Paints each box in a separate channel, on black."""
    image = np.zeros((HEIGHT, WIDTH, 3), np.float32)
    for channel, (xmin, ymin, xmax, ymax) in enumerate(boxes):
        image[ymin:ymax, xmin:xmax, channel] = 255
    rows = np.array(
        [[*corners, channel, 0] for channel, corners in enumerate(boxes)] + [[0, 0, 0, 0, -1, 0]], np.float32
    )
    return image, rows


def extent(image: np.ndarray, channel: int) -> np.ndarray:
    """Finds the box of what is painted in a channel; what the image did not show is grey in all of them."""
    seen = (image[..., channel] > 127.6) & (image.min(axis=2) < 100)
    ys, xs = np.flatnonzero(seen.any(axis=1)), np.flatnonzero(seen.any(axis=0))
    return np.array([xs[0], ys[0], xs[-1] + 1, ys[-1] + 1]) if len(xs) else np.zeros(4)


def apply(rules, image: np.ndarray, rows: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    images, boxes = rules.apply(image[None], rows[None], np.array([7, seed], np.int32))
    return np.asarray(images)[0], np.asarray(boxes)[0]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31 - 1),
    flip=st.booleans(),
    shift=st.sampled_from([0.0, 0.2]),
    scale=st.sampled_from([0.0, 0.5]),
    crop=st.sampled_from([0.0, 0.5]),
)
def test_boxes_stay_on_the_pixels_that_they_mark(seed, flip, shift, scale, crop):
    image, rows = marked([(3, 5, 30, 25), (50, 20, 88, 58), (40, 2, 52, 16)])
    before = rows.copy()
    changed, moved = apply(augmentation(flip=flip, shift=shift, scale=scale, crop=crop, colour=0.0), image, rows, seed)
    np.testing.assert_array_equal(rows, before)
    for channel, row in enumerate(moved[:3]):
        found = extent(changed, channel)
        if row[4] < 0:  # gone: at most the rim of a pixel is left
            np.testing.assert_array_equal(row, [0, 0, 0, 0, -1, 0])
            assert (found[2:] - found[:2]).min() <= 2
        else:
            assert row[4] == channel
            np.testing.assert_allclose(row[:4], found, atol=1.1)
    np.testing.assert_array_equal(moved[3], [0, 0, 0, 0, -1, 0])


def test_without_changes_everything_stays_as_it_is():
    image, rows = marked([(3, 5, 30, 25)])
    changed, moved = apply(augmentation(**NOTHING), image, rows, 1)
    np.testing.assert_array_equal(changed, image)
    np.testing.assert_array_equal(moved, rows)


def test_the_seed_decides_and_a_half_of_the_images_is_mirrored():
    image, rows = marked([(3, 5, 30, 25)])
    mirror = augmentation(**{**NOTHING, "flip": True})
    drawn = [round(float(apply(mirror, image, rows, seed)[1][0, 0])) for seed in range(40)]
    assert set(drawn) == {3, 60}
    assert 8 < drawn.count(3) < 32
    every = augmentation()
    for one, other in zip(apply(every, image, rows, 5), apply(every, image, rows, 5), strict=True):
        np.testing.assert_array_equal(one, other)


def test_colours_change_within_their_range_and_boxes_do_not():
    image, rows = marked([(3, 5, 30, 25)])
    image = image / 2 + 60  # black and white may stay as they are
    changed, moved = apply(augmentation(**{**NOTHING, "colour": 0.8}), image, rows, 3)
    np.testing.assert_array_equal(moved, rows)
    assert changed.min() >= 0
    assert changed.max() <= 255
    assert not np.array_equal(changed, image)


def test_a_box_that_is_mostly_cut_off_is_ignored_and_no_background():
    from lakelens.training.trials.box_augmentation import moved_boxes

    rows = np.array([[[0, 0, 20, 20, 4, 0], [0, 0, 40, 20, 5, 0], [0, 0, 15.5, 20, 6, 0]]], np.float32)
    moved = moved_boxes(rows, np.array([[15, 0, 15 + WIDTH, HEIGHT]], np.float32), (HEIGHT, WIDTH)).numpy()[0]
    np.testing.assert_allclose(moved, [[0, 0, 5, 20, 4, 1], [0, 0, 25, 20, 5, 0], [0, 0, 0, 0, -1, 0]])


@pytest.mark.parametrize(("name", "value"), [("scale", -0.1), ("crop", 0.95), ("colour", float("nan"))])
def test_a_change_outside_its_range_is_refused(name, value):
    with pytest.raises(InvalidHyperparameters, match=rf"hyperparameter '{name}' is"):
        augmentation(**{name: value})
