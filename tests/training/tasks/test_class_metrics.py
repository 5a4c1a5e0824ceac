"""Rules of the metrics and the picture of a classification."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from lakelens.training.tasks.class_metrics import class_metrics
from lakelens.training.tasks.plots import draw_confusion_matrix

pytestmark = pytest.mark.unit
CONFUSION = np.array([[8, 2, 0], [1, 9, 0], [0, 0, 0]])
NAMES = ["cat", "dog", "mouse"]


def test_each_class_has_precision_recall_and_f1():
    cat, dog, none = class_metrics(CONFUSION, NAMES)
    assert (cat.support, cat.recall, cat.precision) == (10, 0.8, 8 / 9)
    assert cat.f1 == pytest.approx(2 * 0.8 * (8 / 9) / (0.8 + 8 / 9))
    assert dog.precision == pytest.approx(9 / 11)
    assert (none.support, none.recall, none.precision, none.f1) == (0, None, None, None)
    never, only = class_metrics(np.array([[0, 4], [0, 6]]), NAMES[:2], [3, 5], [2, 0])
    assert (never.label, never.support, never.recall, never.precision, never.f1) == (3, 6, 0, None, 0)
    assert (only.label, only.support, only.recall, only.precision) == (5, 6, 1, 0.6)


@pytest.mark.parametrize("classes", [1, 25, 400])
def test_a_confusion_matrix_of_any_size_is_drawn(classes):
    rng = np.random.default_rng(0)
    confusion = np.diag(rng.integers(1, 50, classes)) + rng.integers(0, 3, (classes, classes))
    picture = draw_confusion_matrix(confusion, [f"class {number}, $named$ by me" for number in range(classes)])
    assert max(Image.open(io.BytesIO(picture)).size) < 2000
