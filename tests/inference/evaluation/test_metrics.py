"""Rules of the metrics of an evaluation."""

from __future__ import annotations

import pandas as pd
import pytest

from lakelens.errors import PredictionsSchemaError
from lakelens.inference.evaluation.comparison import compare, mcnemar
from lakelens.inference.evaluation.metrics import measure, one_numbering

pytestmark = pytest.mark.unit

NAMES = {0: "cat", 1: "dog"}


COLUMNS = ["label", "prediction", "true_rank", "bin", "rows", "confidence"]


def measured(*rows, names=NAMES, unlabelled=0):
    return measure(pd.DataFrame(rows, columns=COLUMNS), names, unlabelled)


def answers(counts, **given):
    return measured(
        *((label, prediction, None, None, rows, 0.0) for (label, prediction), rows in counts.items()), **given
    )


def test_recall_precision_and_f1_follow_from_the_counts():
    given = answers({(0, 0): 8, (0, 1): 2, (1, 1): 5, (1, 0): 5})
    cat, dog = given.classes
    assert (cat.name, cat.support, cat.recall, cat.precision) == ("cat", 10, 0.8, pytest.approx(8 / 13))
    assert dog.f1 == pytest.approx(2 * 0.5 * (5 / 7) / (0.5 + 5 / 7))
    assert given.accuracy == pytest.approx(13 / 20)
    assert given.balanced_accuracy == pytest.approx((0.8 + 0.5) / 2)
    assert given.macro_f1 == pytest.approx((cat.f1 + dog.f1) / 2)
    assert given.confusion.tolist() == [[8, 2], [5, 5]]


def test_a_row_with_an_error_counts_as_wrong():
    given = answers({(0, 0): 3, (0, None): 1}, names={0: "cat"})
    assert (given.accuracy, given.rows, given.errors) == (0.75, 4, 1)
    assert (given.classes[0].support, given.classes[0].recall, given.classes[0].precision) == (4, 0.75, 1.0)


def test_a_class_may_have_the_number_minus_one():
    given = answers({(-1, 0): 1, (-1, None): 1, (0, -1): 1})
    assert given.confusion.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    assert (given.rows, given.errors, [one.name for one in given.classes]) == (3, 1, ["-1", "cat", "dog"])


def test_what_is_not_defined_is_none_and_not_zero():
    given = answers({(0, 1): 2}, names={**NAMES, 2: "owl"}, unlabelled=4)
    cat, dog, owl = given.classes
    assert (cat.recall, cat.precision, cat.f1) == (0.0, None, 0.0)
    assert (dog.recall, dog.precision) == (None, 0.0)
    assert (owl.recall, owl.precision, owl.f1) == (None, None, None)
    assert given.unlabelled == 4
    assert measured(names={}).accuracy is None
    assert measured().scores == {}


def test_top_k_counts_rows_whose_true_class_is_among_the_first():
    ranked = [(0, 0, 0, None, 5, 0.0), (0, 1, 1, None, 3, 0.0), (3, 1, None, None, 2, 0.0)]
    given = measured(*ranked, names={0: "a", 1: "b", 2: "c", 3: "d"})
    assert given.top_k == {1: 0.5, 3: 0.8}  # of 4 classes, the first 5 are all


def test_the_calibration_error_is_the_distance_of_probability_and_accuracy():
    sure_and_wrong, sure_and_right = (0, 1, 1, 14, 10, 9.5), (0, 0, 0, 14, 10, 9.5)
    given = measured(sure_and_wrong, sure_and_right, (1, 1, 0, 7, 20, 10.0))
    assert given.ece == pytest.approx(0.5 * abs(0.95 - 0.5) + 0.5 * abs(0.5 - 1.0))
    assert given.calibration[["rows", "accuracy"]].to_numpy().tolist() == [[20, 1.0], [20, 0.5]]


def test_one_number_is_one_class_for_the_table_and_for_the_model():
    assert one_numbering({0: "cat"}, {0: "cat", 1: "dog"}) == {0: "cat", 1: "dog"}
    with pytest.raises(PredictionsSchemaError, match="label 1 is 'dog' in the image table and 'horse' for the model"):
        one_numbering({0: "cat", 1: "dog"}, {1: "horse", 2: "owl"})


def test_a_class_of_the_models_own_table_that_was_renamed_is_compared_by_number_and_shows_both_names():
    assert one_numbering({0: "lion", 1: "dog"}, {0: "cat", 1: "dog"}, is_own=True) == {0: "lion (cat)", 1: "dog"}
    with pytest.raises(PredictionsSchemaError, match="label 0 is 'dog' in the image table and 'cat'"):
        one_numbering({0: "dog", 1: "cat"}, {0: "cat", 1: "dog"}, is_own=True)  # the table was made again


def test_a_comparison_counts_what_was_mended_and_what_broke_by_class():
    pairs = [(0, 0, 0, 90), (0, 0, 1, 2), (1, 0, 1, 12), (1, None, 0, 3), (1, 1, 1, 5)]
    found = compare(pd.DataFrame(pairs, columns=["label", "before", "after", "rows"]), NAMES, ({0: 50}, {0: 50, 1: 40}))
    assert (found.rows, found.changed, found.fixed, found.broken, found.most_improved_class) == (112, 17, 12, 2, "dog")
    assert found.both_wrong == 3  # an error became another class
    cat, dog = found.classes
    assert (dog.recall_before, dog.recall_after, dog.fixed, dog.broken) == (0.25, 0.85, 12, 0)
    assert (cat.fixed, cat.broken) == (0, 2)
    assert (dog.f1_before, dog.f1_after) == (pytest.approx(2 * 5 / (20 + 5)), pytest.approx(2 * 17 / (20 + 19)))
    alone = measured(*((label, after, None, None, rows, 0.0) for label, _, after, rows in pairs))
    assert [one.f1 for one in alone.classes] == pytest.approx([one.f1_after for one in found.classes])
    assert [(one.trained_before, one.trained_after) for one in found.classes] == [(50, 50), (0, 40)]


def test_a_comparison_tells_a_class_of_number_minus_one_from_an_error():
    pairs = pd.DataFrame([(-1, None, -1, 2), (-1, -1, None, 1)], columns=["label", "before", "after", "rows"])
    found = compare(pairs, {}, (None, None))
    assert (found.fixed, found.broken, found.both_wrong) == (2, 1, 0)
    assert [(one.name, one.support, one.recall_after) for one in found.classes] == [("-1", 3, pytest.approx(2 / 3))]


def test_mcnemar_is_the_exact_binomial_test():
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(5, 5) == 1.0
    assert mcnemar(10, 0) == pytest.approx(2 * 0.5**10)
