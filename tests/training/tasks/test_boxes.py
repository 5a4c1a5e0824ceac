"""Rules of boxes: overlaps, and which of overlapping boxes are kept."""

from __future__ import annotations

import numpy as np
import pytest

from lakelens.training.tasks.boxes import DETECTED, NO_BOX, SCORE, best_boxes, overlaps

pytestmark = pytest.mark.unit
RULES = {"most": 5, "least_score": 0.1, "overlap": 0.5, "considered": 100}


def test_an_overlap_is_the_shared_area_over_the_joint_one_and_for_a_crowd_over_the_box_alone():
    boxes = np.array([[0, 0, 2, 2], [10, 10, 11, 11]], np.float32)
    truths = np.array([[1, 0, 3, 2], [0, 0, 4, 4]], np.float32)
    np.testing.assert_allclose(overlaps(boxes, truths), [[1 / 3, 1 / 4], [0, 0]])
    np.testing.assert_allclose(overlaps(boxes, truths, np.array([False, True])), [[1 / 3, 1], [0, 0]])


def test_a_box_is_suppressed_by_a_better_one_of_its_own_class_only():
    boxes = np.array([[0, 0, 10, 10], [1, 0, 11, 10], [50, 50, 60, 60]], np.float32)
    scores = np.array([[0.9, 0.0], [0.8, 0.7], [0.05, 0.3]], np.float32)
    found = best_boxes(boxes, scores, **RULES)
    np.testing.assert_allclose(found[:3, SCORE], [0.9, 0.7, 0.3])
    np.testing.assert_array_equal(found[:, DETECTED], [0, 1, 1, NO_BOX, NO_BOX])
    np.testing.assert_array_equal(found[0, :4], boxes[0])


def test_the_best_boxes_fill_a_result_of_one_size_and_a_box_out_of_order_is_none():
    boxes = np.array([[20.0 * i, 0, 20.0 * i + 10, 10] for i in range(9)] + [[10, 0, 5, 5]], np.float32)
    scores = np.linspace(0.2, 0.95, 10, dtype=np.float32)[:, None]
    found = best_boxes(boxes, scores, **RULES)
    assert found.shape == (5, 6)
    np.testing.assert_allclose(found[:, SCORE], scores[8:3:-1, 0])
    assert (best_boxes(boxes, scores * 0, **RULES)[:, DETECTED] == NO_BOX).all()
