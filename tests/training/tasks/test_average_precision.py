"""Rules of average precision: cases computed by hand, and pycocotools on random boxes."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest

from lakelens.training.tasks.average_precision import (
    OperatingPoint,
    PrecisionRecall,
    class_precisions,
    curve_at,
    mean_precisions,
)
from lakelens.training.tasks.boxes import THRESHOLDS, matches_of, no_matches, real_truths
from lakelens.training.tasks.plots import precision_recall_figure

pytestmark = pytest.mark.unit


def scored(*rows: tuple[float, ...]) -> np.ndarray:
    return np.array(rows, np.float32).reshape(-1, 6)


def metrics(images: list[tuple[np.ndarray, np.ndarray]], classes: int = 1):
    matches = np.concatenate([no_matches(), *(matches_of(found, truths) for found, truths in images)])
    objects = sum(real_truths(truths, classes) for _, truths in images)
    return class_precisions(matches, objects, [str(number) for number in range(classes)])


def test_average_precision_of_three_hits_among_five_is_that_by_hand():
    # Four objects; hit, miss, hit, miss, hit: precision 1, 1/2, 2/3, 1/2, 3/5 at recall 1/4, 1/4, 1/2, 1/2, 3/4.
    scores = np.array([0.9, 0.8, 0.7, 0.6, 0.5], np.float32)
    curve = PrecisionRecall.of(scores, np.array([True, False, True, False, True]), 4)
    np.testing.assert_allclose(curve.recall, [1 / 4, 1 / 4, 1 / 2, 1 / 2, 3 / 4])
    np.testing.assert_allclose(curve.precision, [1, 1 / 2, 2 / 3, 1 / 2, 3 / 5])
    np.testing.assert_allclose(curve.area, (1 + 2 / 3 + 3 / 5) / 4)
    # Recall 0, .1, .2 | .3, .4, .5 | .6, .7 | .8, .9, 1
    np.testing.assert_allclose(curve.voc_2007, (3 * 1 + 3 * 2 / 3 + 2 * 3 / 5 + 3 * 0) / 11)
    np.testing.assert_allclose(curve.coco, (26 * 1 + 25 * 2 / 3 + 25 * 3 / 5) / 101)


def test_the_best_score_is_the_least_one_of_the_detections_with_the_highest_f1():
    scores = np.array([0.9, 0.8, 0.8, 0.5], np.float32)
    # Two objects. From 0.9 on: precision 1, recall 1/2. From 0.8 on, hit and miss: 2/3 and 1. From 0.5 on: 1/2 and 1.
    best = PrecisionRecall.of(scores, np.array([True, True, False, False]), 2).best_point()
    assert best == OperatingPoint(pytest.approx(0.8), pytest.approx(0.8), pytest.approx(2 / 3), 1.0)
    # A score takes all detections that have it: with two misses more at 0.8, only that of 0.9 is better.
    tied = PrecisionRecall.of(np.array([0.9, *[0.8] * 4], np.float32), np.array([True, True, False, False, False]), 2)
    assert tied.best_point() == OperatingPoint(pytest.approx(0.9), pytest.approx(2 / 3), 1.0, 0.5)
    assert PrecisionRecall.of(scores, np.zeros(4, bool), 2).best_point() is None
    assert PrecisionRecall.of(scores[:0], np.zeros(0, bool), 2).best_point() is None


def test_equal_curves_are_drawn_in_axes_of_their_own():
    curve = PrecisionRecall.of(np.array([0.9], np.float32), np.array([True]), 1)
    figure = precision_recall_figure({"fork": curve, "mug": curve, "plate": curve}, 0.5)
    drawn = {axis.get_title(loc="left"): len(axis.lines) for axis in figure.axes if axis.lines}
    assert drawn == dict.fromkeys(("fork  1.00", "mug  1.00", "plate  1.00"), 2)  # each a curve and a dot
    many = precision_recall_figure({f"{number}": curve for number in range(30)})
    assert "the 20 of 30 classes of the lowest" in many.get_suptitle()


def test_a_class_without_objects_is_not_part_of_the_mean():
    images = [(scored((0, 0, 10, 10, 0.9, 0), (0, 0, 5, 5, 0.9, 1)), scored((0, 0, 10, 10, 0, 0)))]
    one, none = metrics(images, 2)
    assert (none.ap, none.detections) == (None, 1)
    assert mean_precisions([one, none])["map50"] == 1.0
    assert set(mean_precisions([none]).values()) == {0.0}


def test_the_order_of_the_images_changes_nothing_even_among_equal_scores():
    rng = np.random.default_rng(0)
    images = [random_image(rng, 3, coarse=True) for _ in range(40)]
    assert metrics(images, 3) == metrics(images[::-1], 3)


def test_precision_and_recall_are_those_of_pycocotools_with_crowds():
    pytest.importorskip("pycocotools", reason="pip install pycocotools: the reference of this test")
    rng = np.random.default_rng(1)
    images = [random_image(rng, 4) for _ in range(60)]
    theirs = pycocotools_evaluation(images, 4)
    mine = metrics(images, 4)
    precision = theirs.eval["precision"][:, :, :, 0, 2]  # threshold, recall, class, all sizes, 100 detections
    for each in mine:
        assert 0.05 < (each.ap50 or 0) < 0.95
        assert each.ap == pytest.approx(precision[:, :, each.label].mean(), abs=1e-9)
        recalls = theirs.eval["recall"][:, each.label, 0, 2]
        assert (each.recall50, each.recall) == pytest.approx((recalls[0], recalls.mean()), abs=1e-9)
        of_class = [one for one in theirs.evalImgs if one and one["category_id"] == each.label]
        of_all_sizes = [one for one in of_class if one["aRng"] == theirs.params.areaRng[0]]
        assert each.detections == sum(int((one["dtIgnore"][0] == 0).sum()) for one in of_all_sizes)
        matches = np.concatenate([matches_of(*image) for image in images])
        for number, _ in enumerate(THRESHOLDS):
            curve = curve_at(matches, each.label, each.objects, number)
            assert curve.coco == pytest.approx(precision[number, :, each.label].mean(), abs=1e-9)
    assert mean_precisions(mine)["map"] == pytest.approx(theirs.stats[0], abs=1e-9)
    assert mean_precisions(mine)["recall"] == pytest.approx(theirs.stats[8], abs=1e-9)


def random_image(rng: np.random.Generator, classes: int, *, coarse: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Gives detections near and off the objects of an image, some of which are ignored."""
    count = int(rng.integers(0, 6))
    corners = rng.uniform(0, 80, (count, 2))
    truths = np.column_stack([corners, corners + rng.uniform(8, 30, (count, 2))])
    labels = rng.integers(0, classes, count)
    near = np.repeat(np.arange(count), 2)
    boxes = truths[near] + rng.normal(0, 2.5, (len(near), 4))
    guessed = np.where(rng.random(len(near)) < 0.85, labels[near], rng.integers(0, classes, len(near)))
    off = rng.uniform(0, 80, (2, 2))
    boxes = np.concatenate([boxes, np.column_stack([off, off + 10])])
    guessed = np.concatenate([guessed, rng.integers(0, classes, 2)])
    scores = rng.random(len(boxes)).astype(np.float32)
    scores = np.round(scores, 1) if coarse else scores
    ignored = rng.random(count) < 0.2
    return (
        np.column_stack([boxes, scores, guessed]).astype(np.float32),
        np.column_stack([truths, labels, ignored]).astype(np.float32).reshape(-1, 6),
    )


def pycocotools_evaluation(images, classes: int):
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def sized(box):
        return [float(box[0]), float(box[1]), float(box[2] - box[0]), float(box[3] - box[1])]

    truths = [(number, row) for number, (_, rows) in enumerate(images) for row in rows]
    found = [(number, row) for number, (rows, _) in enumerate(images) for row in rows]
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = {
            "info": {},
            "images": [{"id": number} for number in range(len(images))],
            "categories": [{"id": number} for number in range(classes)],
            "annotations": [
                {"id": i, "image_id": n, "category_id": int(r[4]), "bbox": sized(r), "area": 1.0, "iscrowd": int(r[5])}
                for i, (n, r) in enumerate(truths, 2)
            ],
        }
        truth.createIndex()
        results = truth.loadRes(
            [{"image_id": n, "category_id": int(r[5]), "bbox": sized(r), "score": float(r[4])} for n, r in found]
        )
        evaluation = COCOeval(truth, results, "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation
