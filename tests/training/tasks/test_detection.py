"""Rules of detection: what models must give, what is counted, and what a run records."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from lakelens.errors import TrialError
from lakelens.etl.annotations.frames import ImageFrames
from lakelens.training.tasks.detection import Detection
from lakelens.training.tasks.task import ModelOutput

pytestmark = pytest.mark.unit
TASK = Detection(["cat", "dog"])


def candidates(*rows: tuple[float, ...]) -> np.ndarray:
    return np.array([rows], np.float32)


FOUND = candidates((0, 0, 10, 10, 4, -9), (1, 0, 11, 10, 3, -9), (30, 30, 40, 40, -9, 2))
TRUTH = np.array(
    [[[0, 0, 10, 10, 0, 0], [60, 60, 70, 70, 0, 0], [30, 30, 40, 40, 1, 1], [0, 0, 0, 0, -1, 0]]], np.float32
)
# What is added to each row to move it by a pixel.
MOVED = np.array([1, 0, 1, 0, 0, 0], np.float32)


def test_a_model_whose_output_is_not_boxes_is_refused():
    for shape in ((None, 720, 6), (None, None, 6), None):
        TASK.check_output(ModelOutput(shape, "", None))
    for shape in ((None, 2), (None, 720, 10), {"boxes": (None, 6)}, [(None, 3, 6)]):
        with pytest.raises(
            TrialError, match=r"task detection and 2 classes it must give \[rows, candidates, 6\]: xmin"
        ):
            TASK.check_output(ModelOutput(shape, "", None))


def test_answers_are_the_best_boxes_with_the_sigmoid_of_their_logits():
    found = TASK.answers(FOUND, {})
    assert found.shape == (1, 100, 6)
    np.testing.assert_allclose(
        found[0, :2], [[0, 0, 10, 10, 1 / (1 + np.exp(-4)), 0], [30, 30, 40, 40, 1 / (1 + np.exp(-2)), 1]]
    )
    assert (found[0, 2:, 5] == -1).all()
    assert np.isfinite(TASK.answers(FOUND * 1e15, {})).all()
    with pytest.raises(TrialError, match=r"the model gives \(1, 3, 7\); boxes of 2 classes are \[rows, cand"):
        TASK.answers(np.zeros((1, 3, 7)), {})


def test_counts_of_batches_and_ranks_join_in_any_order_to_the_same_metrics():
    batches = [TASK.count(FOUND, TRUTH, {}), TASK.count(FOUND, TRUTH + MOVED, {}), TASK.no_counts()]
    one, other = (TASK.joined(parts) for parts in (batches, batches[::-1]))
    assert TASK.metrics(one) == TASK.metrics(other)
    assert set(TASK.metrics(one)) == set(TASK.metric_names)
    assert TASK.metrics(TASK.joined([])) == dict.fromkeys(TASK.metric_names, 0.0)
    assert TASK.joined([TASK.joined(batches[:1]), TASK.joined(batches[1:])])["objects"].tolist() == [4, 0]


def test_the_record_has_each_class_with_its_precision_and_the_curves():
    evaluation = TASK.evaluate(TASK.count(FOUND, TRUTH, {}))
    cat, dog = csv.DictReader(io.StringIO(evaluation.tables["per_class.csv"]))
    of_cat = [cat[name] for name in ("class", "objects", "detections", "ap50", "recall50")]
    assert of_cat == ["cat", "2", "1", "0.5", "0.5"]
    assert (dog["objects"], dog["detections"], dog["ap50"]) == ("0", "0", "")
    curve = list(csv.DictReader(io.StringIO(evaluation.tables["precision_recall.csv"])))
    assert [(row["class"], row["recall"], row["precision"]) for row in curve] == [("cat", "0.5", "1")]


def test_a_model_without_any_detection_is_warned_of_with_the_likely_cause():
    nothing = TASK.count(FOUND - np.array([0, 0, 0, 0, 20, 20]), TRUTH, {})
    assert "no detection with a score of at least 0.05" in (TASK.warning(nothing) or "")
    assert TASK.warning(TASK.count(FOUND, TRUTH, {})) is None


def test_labels_that_are_no_boxes_are_refused():
    with pytest.raises(TrialError, match=r"the labels have shape \(1,\); boxes are \[rows, boxes, 6\]"):
        TASK.count(FOUND, np.zeros(1), {})


def test_predictions_are_boxes_of_the_source_with_the_letterbox_undone():
    answers = np.zeros((3, 2, 6), np.float32)
    answers[..., 5] = -1
    answers[0, 0] = [8, 10, 16, 22, 0.75, 1]
    answers[2, 0] = [np.nan] * 6
    column = TASK.prediction_arrays(
        answers, np.array([True, True, False]), [ImageFrames(16, 12), ImageFrames(9, 9), None], (32, 32)
    )
    box = {"label": 1, "label_name": "dog", "score": 0.75, "xmin": 4.0, "ymin": 3.0, "xmax": 8.0, "ymax": 9.0}
    assert column["detections"].to_pylist() == [[box], [], None]


def test_an_output_that_is_not_finite_is_no_answer_and_leaves_the_others_alone():
    outputs = np.concatenate([FOUND, FOUND])
    outputs[1, 2, 5] = np.nan
    found = TASK.answers(outputs, {})
    np.testing.assert_array_equal(found[0], TASK.answers(FOUND, {})[0])
    assert np.isnan(found[1]).all()
