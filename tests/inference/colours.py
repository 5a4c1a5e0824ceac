"""Images of one colour, a model that names the colour, and image tables of them."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from delta_rows import delta_rows
from deltalake import write_deltalake
from PIL import Image

from lakelens.etl.model.schema import IMAGE_TABLE

COLOURS = {"red": (220, 30, 30), "green": (30, 220, 30), "blue": (30, 30, 220)}
NAMES = tuple(COLOURS)
SIDE = 16
# What a checkpoint says of its model's values.
PROBABILITIES = {"name": "classification", "values": "probabilities"}
LOGITS = {"name": "classification", "values": "logits"}
METADATA = {
    "input": {"height": SIDE, "width": SIDE, "channels": 3},
    "labels": {str(number): name for number, name in enumerate(NAMES)},
    "epoch": 1,
}
_COLUMNS = ("path", "image", "format", "height", "width", "label", "label_name", "split", "content_hash")
_SCHEMA = pa.schema([IMAGE_TABLE.field(name) for name in _COLUMNS])


def image_of(name: str, side: int = SIDE, form: str = "JPEG") -> bytes:
    """An image of one colour."""
    image = Image.new("RGB", (side, side), COLOURS[name])
    if form == "raw_rgb":
        return image.tobytes()
    buffer = io.BytesIO()
    image.save(buffer, form)
    return buffer.getvalue()


def write_colour(file: Path, name: str, shade: int = 0) -> None:
    """Writes an image of one colour, with its folders; the shade makes another file of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (SIDE, SIDE), tuple(value + shade for value in COLOURS[name])).save(file, quality=95)


def row(
    number: int, name: str | None = None, *, data: bytes | None = b"", form: str = "jpeg", split: str = "test"
) -> tuple:
    """A row of an image table; the colours take turns unless one is named."""
    name = name or NAMES[number % len(NAMES)]
    if data == b"":
        data = image_of(name, form="raw_rgb" if form == "raw_rgb" else form.upper())
    content = hashlib.sha256(f"{number}".encode() + (data or b"")).hexdigest()
    return (f"file:///images/{number:05d}.jpg", data, form, SIDE, SIDE, NAMES.index(name), name, split, content)


def write_table(path: Path | str, rows: Sequence[tuple], partition_by: Sequence[str] = ("split",)) -> None:
    """Appends rows as one version of an image table that is partitioned by split, or by other columns."""
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), _SCHEMA, strict=True)]
    write_deltalake(str(path), pa.table(columns, schema=_SCHEMA), mode="append", partition_by=list(partition_by))


def colour_model(sharpness: float = 8.0) -> Any:
    """A model that gives each image the colour that is strongest in it; untrained, because its weights are known."""
    import keras

    pixels = [keras.Input((SIDE, SIDE, 3)), keras.layers.Rescaling(1 / 255), keras.layers.GlobalAveragePooling2D()]
    model = keras.Sequential([*pixels, keras.layers.Dense(3, "softmax")])
    model.layers[-1].set_weights([np.eye(3, dtype=np.float32) * sharpness, np.zeros(3, np.float32)])
    return model


def mixer(shift: int) -> Any:
    """A layer's class, always of the same name, which moves the strengths of the colours on by `shift` classes."""
    import keras

    class Mixer(keras.layers.Layer):
        def call(self, strengths: Any) -> Any:
            return keras.ops.roll(strengths, shift, axis=-1)

        def compute_output_shape(self, shape: Any) -> Any:
            return shape

    return Mixer


def mixed_model(layer: Any) -> Any:
    """The colour model with a user's own layer before its softmax."""
    import keras

    pixels = [keras.Input((SIDE, SIDE, 3)), keras.layers.GlobalAveragePooling2D()]
    return keras.Sequential([*pixels, layer(), keras.layers.Softmax()])


def layered(call: Callable[[Any], Any]) -> Any:
    """The colour model with a function after its softmax, as a layer."""
    import keras

    class Layer(keras.layers.Layer):
        def call(self, values: Any) -> Any:
            return call(values)

    inputs = keras.Input((SIDE, SIDE, 3))
    return keras.Model(inputs, Layer()(colour_model()(inputs)))


def save(model: Any, folder: Path, **metadata: Any) -> Any:
    """Saves a model as a checkpoint, described as giving probabilities if its layers do not show what it gives."""
    from lakelens.training.checkpoints.checkpoint import save_checkpoint
    from lakelens.training.checkpoints.keras_output import layers_give_logits

    described = {"task": PROBABILITIES} if layers_give_logits(model) is None else {}
    return save_checkpoint(model, folder, metadata={**METADATA, **described, **metadata}, state={"epoch": 1})


def read(path: Path | str, version: int | None = None) -> list[dict[str, Any]]:
    """The rows of a predictions table, by path and version of the image table."""
    return sorted(delta_rows(path, version), key=lambda one: (one["path"], one["version"]))
