"""Images with the boxes that are true and those that a model finds, as one picture; pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image

from ...etl.images.colours import encode_jpeg
from ...etl.images.drawn_boxes import FOUND_COLOUR, IGNORED_COLOUR, TRUTH_COLOUR, DrawnBox, draw_boxes
from .boxes import DETECTED, IGNORED, LABEL, NO_BOX, SCORE, Floats

_SIDE = 256
_COLUMNS = 4
_QUALITY = 85


def draw_detections(images: npt.NDArray[np.float32], detections: Floats, truths: Floats, names: Sequence[str]) -> bytes:
    """Draws true and found boxes on images in rows of four, the longer side of each 256 pixels, as a JPEG file."""
    tiles = [
        _tile(*each, names) for each in zip(np.clip(images, 0, 255).astype(np.uint8), detections, truths, strict=True)
    ]
    width, height = tiles[0].size
    rows = -(-len(tiles) // _COLUMNS)
    picture = Image.new("RGB", (width * min(len(tiles), _COLUMNS), height * rows), "white")
    for number, tile in enumerate(tiles):
        picture.paste(tile, (number % _COLUMNS * width, number // _COLUMNS * height))
    return encode_jpeg(picture, _QUALITY)


def _tile(pixels: npt.NDArray[np.uint8], detections: Floats, truths: Floats, names: Sequence[str]) -> Image.Image:
    whole = Image.fromarray(pixels)
    scale = _SIDE / max(whole.size)
    tile = whole.resize([round(side * scale) for side in whole.size], Image.Resampling.BILINEAR)
    boxes = [
        DrawnBox(row[:4].tolist(), IGNORED_COLOUR if row[IGNORED] else TRUTH_COLOUR, names[int(row[LABEL])])
        for row in truths[truths[:, LABEL] > NO_BOX]
    ]
    boxes += [
        DrawnBox(row[:4].tolist(), FOUND_COLOUR, names[int(row[DETECTED])], float(row[SCORE]))
        for row in detections[detections[:, DETECTED] > NO_BOX]
    ]
    draw_boxes(tile, boxes, whole.size)
    return tile
