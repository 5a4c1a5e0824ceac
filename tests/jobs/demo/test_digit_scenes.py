"""Rules of the scenes with boxes: only the given classes, boxes lie on their digits, which stand out."""

from __future__ import annotations

import numpy as np
import pytest

from lakelens.jobs.demo.digit_scenes import DigitScenes

pytestmark = pytest.mark.unit


def test_only_digits_with_a_chance_are_drawn_and_their_boxes_lie_in_the_scene() -> None:
    scenes = DigitScenes(held_out=False, seed=1, side=96, chance=[0, 0, 1, 0, 0, 0, 0, 1, 0, 0])
    drawn = [scenes.draw() for _ in range(20)]
    assert {label for scene in drawn for label in scene.labels} == {2, 7}
    assert all(1 <= len(scene.boxes) <= 8 for scene in drawn)
    for left, top, right, bottom in (box for scene in drawn for box in scene.boxes):
        assert 0 <= left < right <= 96
        assert 0 <= top < bottom <= 96


def test_a_digit_stands_out_from_what_lies_under_it() -> None:
    scene = DigitScenes(held_out=False, seed=3, side=128).draw()
    for left, top, right, bottom in scene.boxes:
        part = scene.pixels[top:bottom, left:right].astype(float).mean(axis=2)
        assert np.ptp(part) > 40
