"""A classifier as a SavedModel that needs nothing of lakelens: decoding, resizing and class names are in its graph."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ModelMismatchError
from ...training.checkpoints.checkpoint import Checkpoint
from ..model.compiled import compile_model
from ..model.frozen import check_images

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

# Endpoints of the SavedModel. The first is its `serving_default`.
BYTES, IMAGES = "serve", "images"
# Largest difference of a probability to that of `score`.
_TOLERANCE = {BYTES: 1e-3, IMAGES: 1e-5}


def write_savedmodel(checkpoint: Checkpoint, folder: Path, custom_objects: Mapping[str, Any] | None) -> None:
    """Writes a classifier as a SavedModel with two endpoints, and compares both with what `score` predicts.

    `serve` takes encoded images, a string tensor [rows]; it decodes JPEG, PNG, GIF and BMP, and resizes with bilinear
    filtering as `score` does. `images` takes float32 [rows, height, width, channels] with values 0 to 255. Both give
    `probabilities` float32 [rows, classes], `prediction` int32 [rows] and, if the model names its classes,
    `predicted_name` string [rows].

    Args:
        checkpoint: The checkpoint of a classifier.
        folder: Where to write; must not exist.
        custom_objects: Classes and functions by name that the model needs.

    Raises:
        ModelMismatchError: If the model does not fit its checkpoint, or the SavedModel predicts something else.
    """
    import keras
    import tensorflow as tf

    scored = compile_model(checkpoint, custom_objects)
    model = checkpoint.load_model(custom_objects=custom_objects)
    height, width, channels = checkpoint.input_shape
    logits = scored.task.gives_probabilities(scored.described) is False

    def predict(images: tf.Tensor) -> dict[str, tf.Tensor]:
        return _named(_probabilities(model, images, checkpoint, logits), checkpoint.class_names)

    def predict_encoded(encoded: tf.Tensor) -> dict[str, tf.Tensor]:
        images = tf.map_fn(
            lambda one: _decoded(one, height, width, channels),
            encoded,
            fn_output_signature=tf.TensorSpec((height, width, channels), tf.float32),
        )
        return predict(images)

    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint(BYTES, predict_encoded, [tf.TensorSpec((None,), tf.string, "image")])
    archive.add_endpoint(IMAGES, predict, [tf.TensorSpec((None, height, width, channels), tf.float32, "images")])
    archive.write_out(str(folder), verbose=False)
    _compare(folder, scored.function, checkpoint)


def _probabilities(model: keras.Model, images: tf.Tensor, checkpoint: Checkpoint, logits: bool) -> tf.Tensor:
    """Gives what `Classification.answers` gives, as TensorFlow's operations."""
    import tensorflow as tf

    values = tf.cast(model(images, training=False), tf.float32)
    if values.shape[1] == 1 and len(checkpoint.class_names or ()) in (0, 2):
        second = tf.sigmoid(values) if logits else values
        return tf.concat([1 - second, second], axis=1)
    return tf.nn.softmax(values) if logits else values


def _named(probabilities: tf.Tensor, class_names: Any) -> dict[str, tf.Tensor]:
    import tensorflow as tf

    prediction = tf.argmax(probabilities, axis=1, output_type=tf.int32)
    outputs = {"probabilities": probabilities, "prediction": prediction}
    if class_names:
        outputs["predicted_name"] = tf.gather(tf.constant(list(class_names)), prediction)
    return outputs


def _decoded(encoded: tf.Tensor, height: int, width: int, channels: int) -> tf.Tensor:
    import tensorflow as tf

    image = tf.io.decode_image(encoded, channels=channels, expand_animations=False)
    image = tf.ensure_shape(image, (None, None, channels))
    size = tf.shape(image)[:2]

    def resized() -> tf.Tensor:
        # `score` resizes to whole levels, too.
        return tf.round(tf.image.resize(image, (height, width), antialias=True))

    fits = tf.reduce_all(size == tf.constant([height, width]))
    return tf.ensure_shape(tf.cond(fits, lambda: tf.cast(image, tf.float32), resized), (height, width, channels))


def _compare(folder: Path, function: Any, checkpoint: Checkpoint) -> None:
    """Compares a written SavedModel with `score` on the images on which engines are compared.

    Raises:
        ModelMismatchError: If a probability differs too much.
    """
    import tensorflow as tf

    pixels = check_images(checkpoint.input_shape)
    expected = function(pixels)
    endpoints = tf.saved_model.load(str(folder)).signatures
    encoded = [tf.io.encode_png(image).numpy() for image in pixels]
    given = {
        BYTES: endpoints[BYTES](image=tf.constant(encoded)),
        IMAGES: endpoints[IMAGES](images=tf.constant(pixels.astype(np.float32))),
    }
    for name, outputs in given.items():
        difference = float(np.abs(outputs["probabilities"].numpy() - expected).max())
        if not difference <= _TOLERANCE[name]:
            raise ModelMismatchError(
                f"{checkpoint.path}: as a SavedModel the model gives other probabilities at {name!r}, by up to "
                f"{difference:.1e}; {_TOLERANCE[name]:.0e} is allowed. A layer that is random or depends on the batch "
                "cannot be exported"
            )
