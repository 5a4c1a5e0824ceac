"""Rules of wrong boxes: those on an object of another class, and how they are drawn."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lakelens.jobs.demo.wrong_boxes import draw_box, wrong_boxes

pytestmark = pytest.mark.spark

BOX = "STRUCT<label_name: STRING, score: FLOAT, xmin: FLOAT, ymin: FLOAT, xmax: FLOAT, ymax: FLOAT>"


def box(name: str, score: float, *corners: float) -> tuple[Any, ...]:
    return (name, *map(float, (score, *corners)))


def test_a_wrong_box_overlaps_an_object_of_another_class_by_half(spark: Any) -> None:
    found = [
        box("two", 0.9, 0, 0, 10, 10),  # on the two
        box("four", 0.4, 20, 0, 30, 10),  # on the seven
        box("two", 0.6, 20, 0, 30, 5),  # on half of it
        box("four", 0.8, 20, 0, 30, 4),  # on less
        box("four", 0.7, 60, 60, 70, 70),  # on nothing
    ]
    truths = [box("two", 0, 0, 0, 10, 10), box("seven", 0, 20, 0, 30, 10)]
    predictions = spark.createDataFrame([("a", found), ("b", [])], f"path STRING, detections ARRAY<{BOX}>")
    images = spark.createDataFrame([("a", truths), ("b", truths)], f"path STRING, annotations ARRAY<{BOX}>")
    rows = wrong_boxes(predictions, images).collect()
    assert [(row.path, row.found.label_name, row.truth.label_name) for row in rows] == [
        ("a", "two", "seven"),
        ("a", "four", "seven"),
    ]
    assert [row.found.score for row in rows] == pytest.approx([0.6, 0.4])


def test_both_boxes_are_drawn_into_the_image() -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (320, 200), "black").save(buffer, "PNG")
    corners = {"xmin": 100.0, "ymin": 50.0, "xmax": 180.0, "ymax": 150.0}
    truth = {"label_name": "seven", **corners}
    found = {"label_name": "two", "score": 0.8, **corners, "xmin": 20.0}
    with Image.open(io.BytesIO(draw_box(buffer.getvalue(), truth, found))) as drawn:
        pixels = np.asarray(drawn).astype(int)
    assert pixels.shape == (200, 320, 3)
    red, green = pixels[100, 20], pixels[100, 100]
    assert red[0] > 150 > red[2]
    assert green[1] > 120 > green[0]
    assert pixels[180].max() < 30
