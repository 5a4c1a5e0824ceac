"""Images with the boxes that are true and those that a model finds, as one picture; pure."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from .boxes import DETECTED, IGNORED, LABEL, NO_BOX, SCORE, Floats

# Colour-blind safe (Okabe and Ito, 2008).
_TRUTH, _SKIPPED, _FOUND = "#56B4E9", "#999999", "#E69F00"
_SIDE = 256
_COLUMNS = 4
# Detections with lower scores would cover the image.
_LEAST_SCORE = 0.3
_QUALITY = 85
_NAME_LENGTH = 16


def draw_detections(images: npt.NDArray[np.float32], detections: Floats, truths: Floats, names: Sequence[str]) -> bytes:
    """Draws true boxes in blue, ignored ones in grey, and detections with a score from 0.3 on in orange.

    Args:
        images: [rows, height, width, 3] from 0 to 255.
        detections: float32 [rows, detections, 6], boxes in pixels of the images.
        truths: float32 [rows, boxes, 6].
        names: Name of each class.

    Returns:
        A JPEG file, four images in a row, the longer side of each scaled to 256 pixels.
    """
    tiles = [
        _tile(*each, names) for each in zip(np.clip(images, 0, 255).astype(np.uint8), detections, truths, strict=True)
    ]
    width, height = tiles[0].size
    rows = -(-len(tiles) // _COLUMNS)
    picture = Image.new("RGB", (width * min(len(tiles), _COLUMNS), height * rows), "white")
    for number, tile in enumerate(tiles):
        picture.paste(tile, (number % _COLUMNS * width, number // _COLUMNS * height))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=_QUALITY)
    return buffer.getvalue()


def _tile(pixels: npt.NDArray[np.uint8], detections: Floats, truths: Floats, names: Sequence[str]) -> Image.Image:
    height, width = pixels.shape[:2]
    scale = _SIDE / max(height, width)
    tile = Image.fromarray(pixels).resize((round(width * scale), round(height * scale)), Image.Resampling.BILINEAR)
    pen = ImageDraw.Draw(tile)
    for truth in truths[truths[:, LABEL] > NO_BOX]:
        colour = _SKIPPED if truth[IGNORED] else _TRUTH
        _box(pen, truth[:4] * scale, colour, names[int(truth[LABEL])][:_NAME_LENGTH], below=True)
    for found in detections[(detections[:, DETECTED] > NO_BOX) & (detections[:, SCORE] >= _LEAST_SCORE)]:
        text = f"{names[int(found[DETECTED])][:_NAME_LENGTH]} {found[SCORE]:.2f}"
        _box(pen, found[:4] * scale, _FOUND, text, below=False)
    return tile


def _box(pen: ImageDraw.ImageDraw, corners: Floats, colour: str, text: str, *, below: bool) -> None:
    left, top, right, bottom = (float(corner) for corner in corners)
    if right <= left or bottom <= top:
        return
    pen.rectangle((left, top, right, bottom), outline=colour, width=2)
    pen.text((left + 3, bottom - 13 if below else top + 1), text, fill=colour, stroke_width=1, stroke_fill="black")
