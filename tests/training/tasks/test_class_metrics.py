"""Rules of the tables and the picture of a classification."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from lakelens.errors import InvalidArgumentError
from lakelens.training.tasks.class_metrics import class_metrics, confusion_csv, per_class_csv
from lakelens.training.tasks.plots import draw_confusion_matrix

pytestmark = pytest.mark.unit
CONFUSION = np.array([[8, 2, 0], [1, 9, 0], [0, 0, 0]])
NAMES = ["cat", "dog", "a class, named with a comma and $many$ letters"]


def test_each_class_has_precision_recall_and_f1():
    cat, dog, none = class_metrics(CONFUSION, NAMES)
    assert (cat.support, cat.recall, cat.precision) == (10, 0.8, 8 / 9)
    assert cat.f1 == pytest.approx(2 * 0.8 * (8 / 9) / (0.8 + 8 / 9))
    assert dog.precision == pytest.approx(9 / 11)
    assert (none.support, none.recall, none.precision, none.f1) == (0, None, None, None)
    never, only = class_metrics(np.array([[0, 4], [0, 6]]), NAMES[:2], [3, 5], [2, 0])
    assert (never.label, never.support, never.recall, never.precision, never.f1) == (3, 6, 0, None, 0)
    assert (only.label, only.support, only.recall, only.precision) == (5, 6, 1, 0.6)


def test_a_matrix_that_does_not_fit_the_names_is_refused():
    for draw in (class_metrics, draw_confusion_matrix):
        with pytest.raises(InvalidArgumentError, match=r"\(3, 3\).*2 names"):
            draw(CONFUSION, NAMES[:2])


def test_tables_leave_empty_what_does_not_exist():
    lines = per_class_csv(class_metrics(CONFUSION, NAMES)).splitlines()
    assert lines[0] == "class,label,support,precision,recall,f1"
    assert lines[3] == '"a class, named with a comma and $many$ letters",2,0,,,'
    assert confusion_csv(CONFUSION, NAMES).splitlines()[1] == "cat,8,2,0"


@pytest.mark.parametrize("classes", [1, 3, 25, 400])
def test_a_confusion_matrix_of_any_size_is_drawn(classes):
    rng = np.random.default_rng(0)
    confusion = np.diag(rng.integers(1, 50, classes)) + rng.integers(0, 3, (classes, classes))
    picture = draw_confusion_matrix(confusion, [f"class {number}" for number in range(classes)])
    assert max(Image.open(io.BytesIO(picture)).size) < 2000
