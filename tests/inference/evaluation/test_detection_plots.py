from __future__ import annotations

from itertools import combinations

import pytest

from lakelens.inference.evaluation.detection_plots import Label

pytestmark = pytest.mark.unit


def test_labels_of_boxes_at_one_place_lie_below_one_another():
    labels: list[Label] = []
    for text in ("seven 0.91", "two 0.52", "four 0.40"):
        labels.append(Label(30, 40, 60, text, "red").without_overlap(labels, height=160))
    assert [one.top for one in labels] == sorted({one.top for one in labels})
    assert not any(one.overlaps(other) for one, other in combinations(labels, 2))


def test_a_label_without_a_free_line_stays_within_the_image():
    labels = [Label(30, 0, 60, "seven", "red")]
    assert labels[0].without_overlap(labels, height=20) == labels[0]
