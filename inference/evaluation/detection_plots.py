"""The plots of a detector's evaluation, and images with boxes drawn in. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ... import figures as style
from ...errors import ImageError
from ...etl.images.colours import encode_jpeg
from ...etl.images.drawn_boxes import FOUND_COLOUR, TRUTH_COLOUR, DrawnBox, draw_boxes
from ...etl.images.stored_image import decode_image
from ...etl.model.schema import BOX_CORNERS
from ...training.tasks.plots import draw_precision_recall
from .detection_metrics import DetectionComparison, DetectionMetrics, most_changed
from .result import ShownBoxes

MOST_CLASSES_DRAWN = 25
SIDE_PX = 320
_BEFORE, _AFTER = "#b8bec6", "#2a6fb0"
_AP50, _RECALL = "#E69F00", "#0072B2"
_LABEL_LENGTH = 24
_QUALITY = 88


def draw_detection_plots(evaluation: DetectionMetrics, least_score: float | None = None) -> dict[str, bytes]:
    """Draws average precision and recall of each class, and precision over recall with a score marked."""
    if not evaluation.objects:
        return {}
    worst = sorted((one for one in evaluation.classes if one.objects), key=lambda one: one.ap50 or 0.0)
    worst = worst[:MOST_CLASSES_DRAWN]
    values = {"average precision": [one.ap50 for one in worst], "recall": [one.recall50 for one in worst]}
    names = [f"{style.text_of(one.name, _LABEL_LENGTH)}  ({one.objects:,})" for one in worst]
    title = "at an overlap of 0.5, the lowest average precision first; in brackets: objects"
    return {
        "classes": _bars(values, [_AP50, _RECALL], names, title),
        "precision_recall": draw_precision_recall(evaluation.curves, least_score),
    }


def draw_detection_comparison(comparison: DetectionComparison, names: tuple[str, str]) -> bytes:
    """Draws average precision per class of both models; with many classes those that changed most."""
    drawn = most_changed([one for one in comparison.classes if one.objects], MOST_CLASSES_DRAWN)
    values = {names[0]: [one.ap50_before for one in drawn], names[1]: [one.ap50_after for one in drawn]}
    labels = [f"{style.text_of(one.name, _LABEL_LENGTH)}  ({one.objects:,})" for one in drawn]
    return _bars(values, [_BEFORE, _AFTER], labels, "average precision at an overlap of 0.5; in brackets: objects")


def boxed_jpegs(shown: ShownBoxes) -> list[bytes]:
    """Makes for each model a JPEG of the image, its objects in green and the model's detections in orange."""
    if shown.image is None:
        return []
    try:
        decoded = decode_image(shown.image, target_size=SIDE_PX)
    except ImageError:
        return []
    scale = SIDE_PX / max(decoded.image.size)
    whole = decoded.image.resize([max(1, round(side * scale)) for side in decoded.image.size])
    jpegs = []
    for found in shown.detections:
        image = whole.copy()
        boxes = [_drawn(box, TRUTH_COLOUR) for box in shown.truths] + [_drawn(box, FOUND_COLOUR) for box in found]
        draw_boxes(image, boxes, (decoded.width, decoded.height), least_score=0)
        jpegs.append(encode_jpeg(image, _QUALITY))
    return jpegs


def _drawn(box: Mapping[str, Any], colour: str) -> DrawnBox:
    name = str(box["label_name"] or box["label"])
    score = box["score"] if "score" in box else None  # noqa: SIM401 - Spark's Row has no get
    return DrawnBox([box[corner] for corner in BOX_CORNERS], colour, name, score)


def _bars(
    values: Mapping[str, Sequence[float | None]], colours: Sequence[str], names: Sequence[str], title: str
) -> bytes:
    import pandas as pd

    figure, (axis,) = style.new_figure(max(2.2, 0.36 * len(names) + 1.3))
    style.draw_shares(axis, pd.DataFrame(values, dtype=float), colours, names)
    style.name_axes(axis, "", "", title)
    style.draw_legend(figure, axis)
    return style.to_png(figure)
