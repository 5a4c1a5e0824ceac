"""Boxes with their names, drawn into an image; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from PIL import Image, ImageDraw

TRUTH_COLOUR, IGNORED_COLOUR, FOUND_COLOUR = "#19c37d", "#999999", "#ff8c1a"
# Fainter detections are rarely what a mistake is about, and hide the others.
_LEAST_SCORE = 0.3
_NAME_LENGTH = 16
_LINE_PX = 12


class DrawnBox(NamedTuple):
    """A box as it is drawn."""

    corners: Sequence[float]  # xmin, ymin, xmax, ymax in pixels
    colour: str  # Of its outline and of its label
    name: str = ""  # Its label, at the bottom of the box; empty for none
    score: float | None = None  # Of a detection, whose label is at the top and shows it


def draw_boxes(
    image: Image.Image, boxes: Iterable[DrawnBox], size: tuple[int, int], *, least_score: float = _LEAST_SCORE
) -> None:
    """Draws boxes into an image; not those without finite corners or an area, nor detections with a lower score."""
    draw = ImageDraw.Draw(image)
    scales = (image.width / size[0], image.height / size[1]) * 2
    labels: list[Label] = []
    for box in boxes:
        left, top, right, bottom = (corner * scale for corner, scale in zip(box.corners, scales, strict=True))
        is_sure = box.score is None or box.score >= least_score
        if not is_sure or not all(map(math.isfinite, box.corners)) or left >= right or top >= bottom:
            continue
        outline = (left, top, max(left, right - 1), max(top, bottom - 1))
        draw.rectangle(outline, outline=box.colour, width=max(1, round(max(image.size) / 150)))
        if box.name:
            name = box.name[:_NAME_LENGTH]
            place, text = (bottom - _LINE_PX, name) if box.score is None else (top, f"{name} {box.score:.2f}")
            label = Label(left, place, draw.textlength(text) + 3, text, box.colour)
            labels.append(label.without_overlap(labels, image.height))
    for label in labels:  # above the outlines of all boxes
        draw.rectangle((label.left, label.top, label.left + label.width, label.top + _LINE_PX - 1), fill=label.colour)
        draw.text((label.left + 2, label.top), label.text, fill="black")


class Label(NamedTuple):
    """The name of a box, on a line of its colour; left, top and width in pixels."""

    left: float
    top: float
    width: float
    text: str
    colour: str

    def without_overlap(self, others: Sequence[Label], height: int) -> Label:
        """Moves the label down to the first free line; it stays where it is if the image has no free line below."""
        for line in range(int(height - self.top) // _LINE_PX):
            moved = self._replace(top=self.top + line * _LINE_PX)
            if not any(moved.overlaps(other) for other in others):
                return moved
        return self

    def overlaps(self, other: Label) -> bool:
        """Returns whether both cover a pixel."""
        is_beside = self.left >= other.left + other.width or other.left >= self.left + self.width
        return not is_beside and abs(self.top - other.top) < _LINE_PX
