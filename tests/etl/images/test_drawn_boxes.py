"""Rules of boxes that are drawn into an image: where they and their names are, and which are left out."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from PIL import Image

from lakelens.etl.images.drawn_boxes import TRUTH_COLOUR, DrawnBox, Label, draw_boxes

pytestmark = pytest.mark.unit


def test_labels_of_boxes_at_one_place_lie_below_one_another_within_the_image():
    labels: list[Label] = []
    for text in ("seven 0.91", "two 0.52", "four 0.40"):
        labels.append(Label(30, 40, 60, text, "red").without_overlap(labels, height=160))
    assert [one.top for one in labels] == sorted({one.top for one in labels})
    assert not any(one.overlaps(other) for one, other in combinations(labels, 2))
    assert labels[0].without_overlap(labels, height=labels[0].top + 20) == labels[0]


def test_a_box_is_drawn_at_the_scale_of_its_image_and_its_last_pixel_is_inside():
    image = Image.new("RGB", (50, 100))
    draw_boxes(image, [DrawnBox((20, 40, 80, 60), TRUTH_COLOUR)], (100, 100))
    rows, columns = np.nonzero(np.asarray(image).any(axis=-1))
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (40, 59, 10, 39)


@pytest.mark.parametrize(
    "box",
    [
        DrawnBox((float("nan"), 0, 9, 9), "red"),
        DrawnBox((0, 0, float("inf"), 9), "red"),
        DrawnBox((5, 5, 5, 9), "red", "seven"),
        DrawnBox((1, 9, 9, 1), "red", "seven"),
        DrawnBox((1, 1, 9, 9), "red", "seven", 0.29),
    ],
)
def test_boxes_without_an_area_and_doubtful_detections_are_not_drawn(box):
    image = Image.new("RGB", (20, 20))
    draw_boxes(image, [box], (20, 20))
    assert image.getbbox() is None
