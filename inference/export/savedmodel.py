"""A classifier for servers without lakelens: a SavedModel that decodes and resizes, a pyfunc of it, or an ONNX file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ModelMismatchError
from ...training.checkpoints.checkpoint import Checkpoint
from ...training.checkpoints.references import ModelRef
from ..model.compiled import Answers, CompiledModel, compile_model
from ..model.onnx_engine import check_images, without_tensor_float_32, write_graph

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

# Endpoints of the SavedModel. The first is its `serving_default`.
BYTES, IMAGES = "serve", "images"
_PROBABILITIES = "probabilities"
# Largest difference of a probability to that of `score`.
_TOLERANCE = {BYTES: 1e-3, IMAGES: 1e-5}
# MLflow copies this file into a pyfunc and runs it where the model is loaded; it imports nothing of lakelens.
_SERVED = Path(__file__).with_name("served_model.py")
_PACKAGES = ("tensorflow", "mlflow", "numpy", "pandas")


def write_savedmodel(checkpoint: Checkpoint, folder: Path, custom_objects: Mapping[str, Any] | None) -> None:
    """Writes a classifier as a SavedModel with two endpoints, and compares both with what `score` predicts.

    `serve` takes encoded images, a string tensor [rows]; it decodes JPEG, PNG, GIF and BMP, and resizes with bilinear
    filtering as `score` does. `images` takes float32 [rows, height, width, channels] with values 0 to 255. Both give
    `probabilities` float32 [rows, classes], `prediction` int32 [rows] and, if the model names its classes,
    `predicted_name` string [rows].
    """
    import keras
    import tensorflow as tf

    height, width, channels = checkpoint.input_shape
    scored, model, probabilities = _loaded(checkpoint, custom_objects)

    def predict(images: tf.Tensor) -> dict[str, tf.Tensor]:
        return _named(probabilities(images), checkpoint.class_names)

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
    pixels = check_images(checkpoint.input_shape)
    expected = scored.function(pixels)
    endpoints = tf.saved_model.load(str(folder)).signatures
    encoded = [tf.io.encode_png(image).numpy() for image in pixels]
    given = {
        BYTES: endpoints[BYTES](image=tf.constant(encoded))[_PROBABILITIES].numpy(),
        IMAGES: endpoints[IMAGES](images=tf.constant(pixels.astype(np.float32)))[_PROBABILITIES].numpy(),
    }
    for name, values in given.items():
        _compare(f"as a SavedModel, at {name!r},", values, expected, _TOLERANCE[name], checkpoint)


def write_pyfunc(savedmodel: Path, folder: Path, model: ModelRef) -> None:
    """Writes an MLflow pyfunc around a SavedModel, whose input is the column `image` with encoded images."""
    import mlflow
    from mlflow.models import ModelSignature
    from mlflow.types import DataType
    from mlflow.types.schema import Array, ColSpec, Schema

    outputs = [
        ColSpec(DataType.integer, "prediction"),
        *([ColSpec(DataType.string, "predicted_name")] if model.class_names else []),
        ColSpec(DataType.float, "probability"),
        ColSpec(Array(DataType.float), "probabilities"),
    ]
    mlflow.pyfunc.save_model(
        str(folder),
        python_model=str(_SERVED),
        artifacts={"savedmodel": str(savedmodel)},
        signature=ModelSignature(Schema([ColSpec(DataType.binary, "image")]), Schema(outputs)),
        pip_requirements=[f"{name}=={version(name)}" for name in _PACKAGES],
        metadata={"lakelens.digest": model.digest, "lakelens.model": model.uri},
    )


def write_onnx(checkpoint: Checkpoint, file: Path, custom_objects: Mapping[str, Any] | None) -> None:
    """Writes a classifier as an ONNX file, and compares it in ONNX Runtime with what `score` predicts.

    It takes `images`, float32 [rows, height, width, channels] with values 0 to 255, and gives `probabilities` float32
    [rows, classes] and `prediction` int32 [rows]. Class names are a JSON list in its metadata, `lakelens.class_names`.
    """
    import onnxruntime
    import tensorflow as tf

    scored, _, probabilities = _loaded(checkpoint, custom_objects)
    signature = [tf.TensorSpec((None, *checkpoint.input_shape), tf.float32, IMAGES)]
    traced = tf.function(lambda images: _named(probabilities(images), None), input_signature=signature, autograph=False)
    properties = {"lakelens.class_names": json.dumps(checkpoint.class_names), "lakelens.digest": checkpoint.digest}
    write_graph(traced, file, properties)
    pixels = check_images(checkpoint.input_shape)
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (values,) = session.run([_PROBABILITIES], {IMAGES: pixels.astype(np.float32)})
    with without_tensor_float_32():
        expected = scored.function(pixels)
    _compare("in ONNX Runtime", values, expected, _TOLERANCE[IMAGES], checkpoint)


def _loaded(
    checkpoint: Checkpoint, custom_objects: Mapping[str, Any] | None
) -> tuple[CompiledModel, keras.Model, Callable[[tf.Tensor], tf.Tensor]]:
    """Loads a model twice: as `score` runs it, and for TensorFlow with a function from images to probabilities."""
    scored = compile_model(checkpoint, custom_objects)
    model = checkpoint.load_model(custom_objects=custom_objects)
    logits = scored.task.gives_probabilities(scored.described) is False
    return scored, model, lambda images: _probabilities(model, images, checkpoint, logits)


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
    outputs = {_PROBABILITIES: probabilities, "prediction": prediction}
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


def _compare(where: str, given: Answers, expected: Answers, allowed: float, checkpoint: Checkpoint) -> None:
    """Compares the probabilities of an exported model with those of `score`."""
    difference = float(np.abs(given - expected).max())
    if not difference <= allowed:
        raise ModelMismatchError(
            f"{checkpoint.path}: {where} the model gives other probabilities, by up to {difference:.1e}; {allowed:.0e} "
            "is allowed. A layer that is random or depends on the batch cannot be exported"
        )
