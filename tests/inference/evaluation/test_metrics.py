"""Rules of the metrics per class."""

from __future__ import annotations

import pytest

from lakelens.errors import PredictionsSchemaError
from lakelens.inference.evaluation.metrics import evaluate_counts, one_numbering

pytestmark = pytest.mark.unit


def test_recall_precision_and_f1_follow_from_the_counts():
    given = evaluate_counts({(0, 0): 8, (0, 1): 2, (1, 1): 5, (1, 0): 5}, {0: "cat", 1: "dog"})
    cat, dog = given.classes
    assert (cat.name, cat.support, cat.recall, cat.precision) == ("cat", 10, 0.8, pytest.approx(8 / 13))
    assert dog.f1 == pytest.approx(2 * 0.5 * (5 / 7) / (0.5 + 5 / 7))
    assert given.accuracy == pytest.approx(13 / 20)
    assert given.confusion.tolist() == [[8, 2], [5, 5]]


def test_a_row_with_an_error_counts_as_wrong():
    given = evaluate_counts({(0, 0): 3, (0, None): 1}, {0: "cat"})
    assert (given.accuracy, given.rows, given.errors) == (0.75, 4, 1)
    assert (given.classes[0].support, given.classes[0].recall, given.classes[0].precision) == (4, 0.75, 1.0)


def test_what_is_not_defined_is_none_and_not_zero():
    given = evaluate_counts({(0, 1): 2}, {0: "cat", 1: "dog", 2: "owl"}, unlabelled=4)
    cat, dog, owl = given.classes
    assert (cat.recall, cat.precision, cat.f1) == (0.0, None, None)
    assert (dog.recall, dog.precision) == (None, 0.0)
    assert (owl.recall, owl.precision) == (None, None)
    assert given.unlabelled == 4
    assert evaluate_counts({}, {}).accuracy is None


def test_one_number_is_one_class_for_the_table_and_for_the_model():
    assert one_numbering({0: "cat"}, {0: "cat", 1: "dog"}) == {0: "cat", 1: "dog"}
    with pytest.raises(PredictionsSchemaError, match="label 1 is 'dog' in the image table and 'horse' for the model"):
        one_numbering({0: "cat", 1: "dog"}, {1: "horse", 2: "dog"})
