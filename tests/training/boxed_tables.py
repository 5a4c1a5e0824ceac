"""A Delta table that a small detector learns in seconds: rectangles whose colour is their class, on grey noise."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake
from feed_tables import number_classes
from PIL import Image

CLASSES = ("green", "red")
# No multiples of the strides.
HEIGHT, WIDTH = 60, 76
_COLOURS = ((40, 200, 40), (210, 40, 40))
_CORNERS = ("xmin", "ymin", "xmax", "ymax")
_BOX = pa.struct([("label", pa.int32()), *((name, pa.float64()) for name in _CORNERS), ("difficult", pa.bool_())])


def scene(number: int) -> tuple[bytes, list[dict]]:
    """Gives an image and its boxes; every eighth has none, and in every eighth one is difficult."""
    rng = np.random.default_rng(number)
    pixels = rng.integers(90, 160, (HEIGHT, WIDTH, 1)).repeat(3, axis=2)
    boxes = []
    for place in range(0 if number % 8 == 0 else 1 + number % 2):
        width, height = rng.integers(16, 30, 2)
        left, top = place * WIDTH // 2 + rng.integers(0, WIDTH // 2 - width + 1), rng.integers(0, HEIGHT - height)
        label = int(rng.integers(len(CLASSES)))
        pixels[top : top + height, left : left + width] = np.array(_COLOURS[label]) + rng.integers(-20, 20)
        corners = zip(_CORNERS, map(float, (left, top, left + width, top + height)), strict=True)
        boxes.append({"label": label, **dict(corners), "difficult": number % 8 == 3 and place == 1})
    buffer = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype("uint8")).save(buffer, "JPEG", quality=92)
    return buffer.getvalue(), boxes


def boxed_rows(first: int, rows: int, split: str) -> pa.Table:
    scenes = [scene(number) for number in range(first, first + rows)]
    return pa.table(
        {
            "path": [f"file:/scenes/{number}.jpg" for number in range(first, first + rows)],
            "image": pa.array([image for image, _ in scenes], pa.binary()),
            "format": ["jpeg"] * rows,
            "height": pa.array([HEIGHT] * rows, pa.int32()),
            "width": pa.array([WIDTH] * rows, pa.int32()),
            "label": pa.array([None] * rows, pa.int32()),
            "annotations": pa.array([boxes for _, boxes in scenes], pa.list_(_BOX)),
            "split": [split] * rows,
        }
    )


def boxed_table(location: Path, train: int = 96, validation: int = 21) -> Path:
    """Version 0 has both splits and knows the names of the classes."""
    rows = [boxed_rows(0, train, "train"), boxed_rows(10_000, validation, "validation")]
    write_deltalake(str(location), pa.concat_tables(rows), mode="error", partition_by=["split"])
    number_classes(location, {name: number for number, name in enumerate(CLASSES)})
    return location
