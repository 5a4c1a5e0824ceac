"""Boxes that a detector draws around an object of another class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OVERLAP = 0.5


def wrong_boxes(predictions: DataFrame, images: DataFrame) -> DataFrame:
    """Finds detections that lie on an object of another class, by an intersection over union of at least 0.5."""
    from pyspark.sql import functions

    sides = [f"greatest(least(found.{s}max, truth.{s}max) - greatest(found.{s}min, truth.{s}min), 0)" for s in "xy"]
    areas = [f"({box}.xmax - {box}.xmin) * ({box}.ymax - {box}.ymin)" for box in ("found", "truth")]
    shared = " * ".join(sides)
    pairs = (
        predictions.select("path", functions.explode("detections").alias("found"))
        .join(images.select("path", "annotations"), "path")
        .select("path", "found", functions.explode("annotations").alias("truth"))
    )
    return (
        pairs.where("found.label_name != truth.label_name")
        .where(f"{shared} >= {_OVERLAP} * ({' + '.join(areas)} - {shared})")
        .orderBy(functions.desc("found.score"), "path")
    )


def draw_box(image: bytes, truth: Mapping[str, Any], found: Mapping[str, Any]) -> bytes:
    """Draws an object in green and a detection in orange; gives a JPEG."""
    from lakelens.etl.images.stored_image import StoredImage
    from lakelens.inference.evaluation.detection_plots import boxed_jpegs
    from lakelens.inference.evaluation.result import ShownBoxes

    (jpeg,) = boxed_jpegs(ShownBoxes("", [truth], ([found],), ("",), StoredImage(image)))
    return jpeg
