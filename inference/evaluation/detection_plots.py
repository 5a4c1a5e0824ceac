"""The plots of a detector's evaluation, and images with boxes drawn in. Needs matplotlib."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from PIL import Image, ImageDraw

from ... import figures as style
from ...errors import ImageError
from ...etl.images.stored_image import decode_image, size_of
from ...etl.model.schema import BOX_CORNERS
from ...training.tasks.precision_plot import draw_precision_recall
from .detection_metrics import DetectionComparison, DetectionMetrics, most_changed
from .result import Boxes, ShownBoxes

MOST_CLASSES_DRAWN = 25
SIDE_PX = 320
_TRUTH, _FOUND = "#19c37d", "#ff8c1a"
_BEFORE, _AFTER = "#b8bec6", "#2a6fb0"
_AP50, _RECALL = "#E69F00", "#0072B2"
_LABEL_LENGTH = 24
_NAME_LENGTH = 16
_LINE_PX = 12
# Fainter detections are rarely what a mistake is about, and hide the others.
LEAST_DRAWN_SCORE = 0.3


def draw_detection_plots(evaluation: DetectionMetrics) -> dict[str, bytes]:
    """Draws average precision and recall of each class, and precision over recall.

    Returns:
        PNG files by name without suffix.

    Raises:
        MissingDependencyError: If matplotlib is not installed.
    """
    if not evaluation.objects:
        return {}
    worst = sorted((one for one in evaluation.classes if one.objects), key=lambda one: one.ap50 or 0.0)
    worst = worst[:MOST_CLASSES_DRAWN]
    values = {"average precision": [one.ap50 for one in worst], "recall": [one.recall50 for one in worst]}
    names = [f"{style.text_of(one.name, _LABEL_LENGTH)}  ({one.objects:,})" for one in worst]
    title = "at an overlap of 0.5, the lowest average precision first; in brackets: objects"
    return {
        "classes": _bars(values, [_AP50, _RECALL], names, title),
        "precision_recall": draw_precision_recall(evaluation.curves),
    }


def draw_detection_comparison(comparison: DetectionComparison, names: tuple[str, str]) -> bytes:
    """Draws average precision per class of both models; with many classes those that changed most."""
    drawn = most_changed([one for one in comparison.classes if one.objects], MOST_CLASSES_DRAWN)
    values = {names[0]: [one.ap50_before for one in drawn], names[1]: [one.ap50_after for one in drawn]}
    labels = [f"{style.text_of(one.name, _LABEL_LENGTH)}  ({one.objects:,})" for one in drawn]
    return _bars(values, [_BEFORE, _AFTER], labels, "average precision at an overlap of 0.5; in brackets: objects")


def boxed_jpegs(shown: ShownBoxes) -> list[bytes]:
    """Makes for each model a JPEG of the image, its objects in green and the model's detections in orange.

    The longer side is scaled to 320 pixels. Names stand at the bottom of an object and at the top of a detection.

    Returns:
        Nothing for an image that does not decode.
    """
    if shown.image is None:
        return []
    try:
        whole = decode_image(shown.image, target_size=SIDE_PX).image.convert("RGB")
        height, width = size_of(shown.image)
    except ImageError:
        return []
    scale = SIDE_PX / max(whole.size)
    whole = whole.resize((max(1, round(whole.width * scale)), max(1, round(whole.height * scale))))
    return [_drawn(whole, width, height, shown.truths, found) for found in shown.detections]


def _drawn(whole: Image.Image, width: int, height: int, truths: Boxes, detections: Boxes) -> bytes:
    image = whole.copy()
    draw = ImageDraw.Draw(image)
    sure = [box for box in detections if box["score"] >= LEAST_DRAWN_SCORE]
    labels: list[Label] = []
    for boxes, colour in ((truths, _TRUTH), (sure, _FOUND)):
        for box in boxes:
            scales = (image.width / width, image.height / height) * 2
            left, top, right, bottom = (box[name] * scale for name, scale in zip(BOX_CORNERS, scales, strict=True))
            draw.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), outline=colour, width=2)
            name = str(box["label_name"] or box["label"])[:_NAME_LENGTH]
            place, text = (top, f"{name} {box['score']:.2f}") if "score" in box else (bottom - _LINE_PX, name)
            label = Label(left, place, draw.textlength(text) + 3, text, colour)
            labels.append(label.without_overlap(labels, image.height))
    for label in labels:  # above the outlines of all boxes
        draw.rectangle((label.left, label.top, label.left + label.width, label.top + _LINE_PX - 1), fill=label.colour)
        draw.text((label.left + 2, label.top), label.text, fill="black")
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=88)
    return buffer.getvalue()


class Label(NamedTuple):
    """The name of a box, on a line of its colour; left, top and width in pixels."""

    left: float
    top: float
    width: float
    text: str
    colour: str

    def without_overlap(self, others: Sequence[Label], height: int) -> Label:
        """Moves the label down to the first free line; it stays where it is if there is none within the image."""
        for line in range(int(height - self.top) // _LINE_PX):
            moved = self._replace(top=self.top + line * _LINE_PX)
            if not any(moved.overlaps(other) for other in others):
                return moved
        return self

    def overlaps(self, other: Label) -> bool:
        """Returns whether both cover a pixel."""
        is_beside = self.left >= other.left + other.width or other.left >= self.left + self.width
        return not is_beside and abs(self.top - other.top) < _LINE_PX


def _bars(
    values: Mapping[str, Sequence[float | None]], colours: Sequence[str], names: Sequence[str], title: str
) -> bytes:
    import pandas as pd

    figure, (axis,) = style.new_figure(max(2.2, 0.36 * len(names) + 1.3))
    style.draw_shares(axis, pd.DataFrame(values, dtype=float), colours, names)
    style.name_axes(axis, "", "", title)
    style.draw_legend(figure, axis)
    return style.to_png(figure)
