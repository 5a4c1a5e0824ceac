"""Rules of a detector's metrics, of what changed against another one, and of their pictures."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image
from pyspark.sql import Row

from lakelens.etl.images.stored_image import StoredImage
from lakelens.inference.evaluation.detection_metrics import compare_detections, measure_detections
from lakelens.inference.evaluation.detection_plots import boxed_jpegs, draw_detection_comparison, draw_detection_plots
from lakelens.inference.evaluation.result import ShownBoxes
from lakelens.training.tasks.boxes import matches_of

pytestmark = pytest.mark.unit

BOX = [0, 0, 10, 10]


def measured(found, truths, names=None, **more):
    """The metrics of one image with detections (score, class) and objects (class), all of them at the same place."""
    detections = np.array([[*BOX, *one] for one in found], np.float32).reshape(-1, 6)
    objects = np.array([[*BOX, label, 0] for label in truths], np.float32).reshape(-1, 6)
    counts = {label: truths.count(label) for label in set(truths)}
    given = {"rows": 1, "errors": 0, "unlabelled": 0, **more}
    return measure_detections(matches_of(detections, objects), counts, names or {0: "cat", 1: "dog"}, **given)


def test_a_class_that_is_not_found_lowers_the_mean():
    found = measured([(0.9, 0)], [0, 1])
    assert [(one.name, one.objects, one.detections, one.ap50) for one in found.classes] == [
        ("cat", 1, 1, 1.0),
        ("dog", 1, 0, 0.0),
    ]
    assert found.scores["map50"] == found.scores["recall50"] == 0.5
    assert list(found.curves) == ["cat", "dog"]


def test_a_class_that_the_model_does_not_know_counts_by_its_number():
    found = measured([(0.9, 0)], [0, 3])
    assert [one.name for one in found.classes] == ["cat", "dog", "2", "3"]
    assert found.scores["map50"] == 0.5


def test_without_objects_there_is_no_score():
    found = measured([(0.9, 0)], [])
    assert (found.objects, found.scores, found.curves) == (0, {}, {})
    assert found.classes[0].detections == 1
    assert draw_detection_plots(found) == {}


def test_the_best_score_is_that_of_all_classes_together():
    found = measured([(0.9, 0), (0.4, 1), (0.3, 0)], [0, 1])
    assert (found.best_point.score, found.best_point.f1) == (pytest.approx(0.4), 1.0)
    assert measured([], [0, 1]).best_point is None


def test_a_comparison_names_the_class_that_gained_most():
    before, after = measured([(0.9, 0)], [0, 1]), measured([(0.9, 0), (0.8, 1)], [0, 1])
    found = compare_detections(before, after, rows=20, fixed=9, broken=1)
    assert found.most_improved_class == "dog"
    assert [(one.ap50_before, one.ap50_after) for one in found.classes] == [(1, 1), (0, 1)]
    assert (found.changed, found.scores["fixed"]) == (10, 9)
    assert found.p_value == pytest.approx(0.0215, abs=1e-4)
    assert compare_detections(after, before, rows=20, fixed=1, broken=9).most_improved_class is None


@pytest.mark.parametrize("classes", [2, 40])
def test_plots_are_drawn_with_few_and_with_many_classes(classes):
    names = {number: f"class $ {number}" for number in range(classes)}
    found = measured([(0.9, 0)], list(range(classes)), names)
    plots = draw_detection_plots(found)
    comparison = compare_detections(found, found, rows=1, fixed=0, broken=0)
    plots["comparison"] = draw_detection_comparison(comparison, ("version 0", "version 1"))
    assert set(plots) == {"classes", "precision_recall", "comparison"}
    for name, data in plots.items():
        with Image.open(io.BytesIO(data)) as picture:
            assert picture.format == "PNG", name
            assert max(picture.size) < 2000, name


def test_boxes_are_drawn_from_rows_of_spark():
    image = io.BytesIO()
    Image.new("RGB", (40, 40)).save(image, "PNG")
    corners = {"xmin": 4.0, "ymin": 4.0, "xmax": 30.0, "ymax": 30.0}
    truth, found = Row(label=0, label_name="red", **corners), Row(label=1, label_name="blue", score=0.7, **corners)
    (jpeg,) = boxed_jpegs(ShownBoxes("a", [truth], ([found],), ("",), StoredImage(image.getvalue())))
    assert Image.open(io.BytesIO(jpeg)).getcolors(1 << 17) != [(320 * 320, (0, 0, 0))]
