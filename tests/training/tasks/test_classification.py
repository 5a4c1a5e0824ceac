"""Rules of classification: what models must give, what is counted, what is recorded of their values."""

from __future__ import annotations

import numpy as np
import pytest

from lakelens.errors import TrialError
from lakelens.training.tasks.classification import VALUES_KEY, Classification
from lakelens.training.tasks.output_values import LOGITS, PROBABILITIES
from lakelens.training.tasks.task import ModelOutput

pytestmark = pytest.mark.unit
THREE = Classification(["a", "b", "c, with a comma"])
TWO = Classification(["a", "b"])


def test_counts_of_batches_add_up_to_the_confusion_matrix():
    values = np.array([[0.9, 0.1, 0.0], [0.2, 0.5, 0.3], [0.1, 0.2, 0.7], [0.6, 0.3, 0.1]])
    labels = np.array([0, 1, 1, 2])
    parts = [THREE.count(values[part], labels[part], {}) for part in (slice(0, 1), slice(1, 4))]
    whole = THREE.count(values, labels, {})["confusion"]
    np.testing.assert_array_equal(whole, [[1, 0, 0], [0, 1, 1], [1, 0, 0]])
    np.testing.assert_array_equal(sum(part["confusion"] for part in parts) + THREE.no_counts()["confusion"], whole)
    one_hot = np.eye(3)[labels]
    np.testing.assert_array_equal(THREE.count(values, one_hot, {})["confusion"], whole)


@pytest.mark.parametrize(("kind", "predicted"), [(LOGITS, [0, 1, 1]), (PROBABILITIES, [0, 0, 1])])
def test_one_value_is_that_of_the_second_class(kind, predicted):
    counted = TWO.count(np.array([[0.0], [0.3], [0.7]]), np.array([0, 0, 0]), {VALUES_KEY: kind})["confusion"]
    np.testing.assert_array_equal(counted, [[predicted.count(0), predicted.count(1)], [0, 0]])


@pytest.mark.parametrize(
    ("values", "labels", "words"),
    [
        (np.zeros((2, 4)), np.zeros(2), r"needs \[rows, 3\]"),
        (np.zeros((2, 3)), np.array([0, 3]), "a class number from 0 to 2"),
        (np.zeros((2, 3)), np.zeros((2, 5)), "a class number from 0 to 2"),
    ],
)
def test_what_does_not_fit_is_no_count(values, labels, words):
    with pytest.raises(TrialError, match=words):
        THREE.count(values, labels, {})


def test_the_evaluation_has_a_line_for_each_class():
    evaluation = THREE.evaluate(THREE.count(np.eye(3), np.array([0, 1, 1]), {}))
    assert evaluation.tables["per_class.csv"].splitlines() == [
        "class,label,support,precision,recall,f1",
        "a,0,1,1,1,1",
        "b,1,2,1,0.5,0.666667",
        '"c, with a comma",2,0,0,,',
    ]
    assert evaluation.tables["confusion.csv"].splitlines()[2] == "b,0,1,1"


@pytest.mark.parametrize(
    ("task", "shape", "loss", "words"),
    [
        (THREE, (None, 3), "", None),
        (THREE, (None, None), "", None),
        (THREE, None, "", None),
        (TWO, (None, 1), "binary_crossentropy", None),
        (TWO, (None, 1), "sparse_categorical_crossentropy", "gives 1 .* 2 classes.*one value .*binary_crossentropy"),
        (THREE, (None, 4), "", "gives 4 values per image, the table has 3 classes"),
        (THREE, {"a": (None, 3)}, "", "must give one tensor of shape .rows, 3., so return this tensor alone"),
        (THREE, [(None, 3), (None, 3)], "", "must give one tensor"),
        (THREE, "Answer", "", "gives Answer; a classifier must give one tensor"),
        (THREE, (None, 8, 8, 3), "", "pool or flatten the other axes"),
    ],
)
def test_a_model_gives_a_value_per_class_or_for_two_classes_the_second_one(task, shape, loss, words):
    output = ModelOutput(shape, loss, LOGITS)
    if words is None:
        task.check_output(output)
        return
    with pytest.raises(TrialError, match=words):
        task.check_output(output)


def test_a_model_whose_kind_nothing_shows_is_refused_with_the_attribute_that_states_it():
    with pytest.raises(TrialError, match=r"nor its loss shows .*outputs = 'logits' or outputs = 'probabilities'"):
        THREE.check_output(ModelOutput((None, 3), "own", None))


@pytest.mark.parametrize(
    ("task", "values", "kind", "probabilities"),
    [
        (THREE, [[0.2, 0.5, 0.3]], PROBABILITIES, [[0.2, 0.5, 0.3]]),
        (THREE, [[0, np.log(2), -800]], LOGITS, [[1 / 3, 2 / 3, 0]]),
        (TWO, [[0.25], [1]], PROBABILITIES, [[0.75, 0.25], [0, 1]]),
        (TWO, [[-np.log(3)], [800], [-800]], LOGITS, [[0.75, 0.25], [0, 1], [1, 0]]),
        (Classification([]), [[0.25]], PROBABILITIES, [[0.75, 0.25]]),
        (Classification([]), [[0.5, 0.3, 0.2]], PROBABILITIES, [[0.5, 0.3, 0.2]]),
    ],
)
def test_answers_are_a_probability_per_class(task, values, kind, probabilities):
    given = task.answers(np.array(values, np.float32), {VALUES_KEY: kind})
    np.testing.assert_allclose(given, probabilities, atol=1e-6)


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        (np.zeros((1, 2)), "gives 2 values per image, its checkpoint names 3 classes"),
        (np.zeros((1, 2, 3)), r"shape \(1, 2, 3\); \[rows, classes\]"),
        ({"boxes": np.zeros((1, 4)), "scores": np.zeros(1)}, "2 outputs; one"),
    ],
)
def test_outputs_without_a_value_per_class_are_no_answers(outputs, words):
    with pytest.raises(TrialError, match=words):
        THREE.answers(outputs, {})


def test_a_row_without_an_answer_is_null_in_every_column():
    answers = np.array([[0.2, 0.5, 0.3], [np.nan] * 3, [0.4, 0.4, 0.2]], np.float32)
    arrays = THREE.prediction_arrays(answers, np.array([True, False, True]), [None] * 3, (8, 8))
    assert list(arrays) == list(THREE.prediction_columns)
    assert arrays["prediction"].to_pylist() == [1, None, 0]
    assert arrays["predicted_name"].to_pylist() == ["b", None, "a"]
    assert arrays["probability"].to_pylist() == pytest.approx([0.5, None, 0.4])
    assert [row and len(row) for row in arrays["probabilities"].to_pylist()] == [3, None, 3]
