"""Boxes in the images of an evaluation."""

from __future__ import annotations

import io

import pytest
from PIL import Image
from pyspark.sql import Row

from lakelens.etl.images.stored_image import StoredImage
from lakelens.inference.evaluation.detection_plots import boxed_jpegs
from lakelens.inference.evaluation.result import ShownBoxes

pytestmark = pytest.mark.unit


def test_boxes_are_drawn_from_rows_of_spark() -> None:
    image = io.BytesIO()
    Image.new("RGB", (40, 40)).save(image, "PNG")
    corners = {"xmin": 4.0, "ymin": 4.0, "xmax": 30.0, "ymax": 30.0}
    truth, found = Row(label=0, label_name="red", **corners), Row(label=1, label_name="blue", score=0.7, **corners)
    (jpeg,) = boxed_jpegs(ShownBoxes("a", [truth], ([found],), ("",), StoredImage(image.getvalue())))
    assert Image.open(io.BytesIO(jpeg)).getcolors(1 << 17) != [(320 * 320, (0, 0, 0))]
