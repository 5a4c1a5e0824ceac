"""Images with coloured squares, a detector that finds them by their colour, and image tables of them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from colours import COLOURS, save
from deltalake import write_deltalake
from PIL import Image

from lakelens.etl.model.schema import IMAGE_TABLE

KINDS = ("red", "blue")
# The detector takes images of this side, and looks at cells of this side.
SIDE, CELL = 64, 8
# Stored images are twice as wide as high: the detector sees them at half their size, between two bars of 16 pixels.
HEIGHT, WIDTH = 64, 128
Square = tuple[str, int, int]


def truth_of(square: Square) -> dict[str, Any]:
    """The annotation of a square, which is named by its colour, column and row."""
    name, column, row = square
    side = 2 * CELL
    corners = {"xmin": column * side, "ymin": row * side, "xmax": (column + 1) * side, "ymax": (row + 1) * side}
    return {"label": KINDS.index(name), "label_name": name, **{k: float(v) for k, v in corners.items()}}


def image_with(squares: Sequence[Square], orientation: int = 1) -> bytes:
    """A white file of 64 x 128 pixels with squares of 16 pixels, which EXIF may turn."""
    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    for square in squares:
        box = truth_of(square)
        image.paste(COLOURS[square[0]], tuple(int(box[name]) for name in ("xmin", "ymin", "xmax", "ymax")))
    buffer = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(buffer, "PNG", exif=exif)
    return buffer.getvalue()


def write_boxes(
    path: Path | str, images: Sequence[Sequence[Square] | None], annotations: pa.DataType | None = None, first: int = 0
) -> None:
    """Adds to an image table whose files are not recorded, with annotations of a type; None is that of an ingest.

    An image is its squares; None is an image without squares that nobody has annotated.
    """
    rows = [
        {
            "path": f"file:///boxes/{number:03d}.png",
            "image": image_with(squares or ()),
            "format": "png",
            "height": HEIGHT,
            "width": WIDTH,
            "annotations": None if squares is None else [{**truth_of(one), "difficult": False} for one in squares],
            "split": "test",
            "content_hash": f"{number}",
        }
        for number, squares in enumerate(images, first)
    ]
    place = IMAGE_TABLE.get_field_index("annotations")
    kind = annotations or IMAGE_TABLE.field("annotations").type
    columns = IMAGE_TABLE.set(place, pa.field("annotations", kind))
    write_deltalake(str(path), pa.Table.from_pylist(rows, columns), mode="append", partition_by=["split"])


def square_detector(kinds: Sequence[str] = KINDS, faint: Sequence[str] = ()) -> Any:
    """A Keras model that gives each cell of its image as a candidate, and finds squares of some of the colours.

    The scores of faint ones are below 0.93, those of others above 0.99.
    """
    import keras

    cells = SIDE // CELL
    image = keras.Input((SIDE, SIDE, 3))
    means = keras.layers.AveragePooling2D(CELL)(image)
    # A class's logit is 8 for its own colour, and below -8 for white, for grey bars and for the other one.
    logits = keras.layers.Reshape((cells * cells, len(KINDS)))(keras.layers.Conv2D(len(KINDS), 1)(means))
    boxes = keras.layers.Reshape((cells * cells, 4))(
        keras.layers.Dense(cells * cells * 4)(keras.layers.Flatten()(means))
    )
    model = keras.Model(image, keras.layers.Concatenate()([boxes, logits]))
    convolution = next(layer for layer in model.layers if isinstance(layer, keras.layers.Conv2D))
    kernel = np.full((1, 1, 3, len(KINDS)), -0.1, np.float32)
    bias = np.full(len(KINDS), -9.0, np.float32)
    for place, name in enumerate(KINDS):
        if name in kinds:
            strong = int(np.argmax(COLOURS[name]))
            kernel[0, 0, strong, place] = 0.1
            bias[place] = (2.5 if name in faint else 8) - 0.1 * 220 + 0.1 * 60
    convolution.set_weights([kernel, bias])
    corners = [(x, y, x + 1, y + 1) for y in range(cells) for x in range(cells)]
    dense = next(layer for layer in model.layers if isinstance(layer, keras.layers.Dense))
    dense.set_weights([np.zeros_like(dense.get_weights()[0]), np.array(corners, np.float32).ravel() * CELL])
    return model


def save_detector(folder: Path, kinds: Sequence[str] = KINDS, faint: Sequence[str] = (), **metadata: Any) -> Any:
    """A checkpoint of a detector."""
    given = {
        "input": {"height": SIDE, "width": SIDE, "channels": 3},
        "labels": {str(number): name for number, name in enumerate(KINDS)},
        "task": {"name": "detection", "values": "corners, logits"},
    }
    return save(square_detector(kinds, faint), folder, **{**given, **metadata})
