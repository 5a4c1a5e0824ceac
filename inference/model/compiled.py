"""A checkpoint's Keras model as one traced function from pixels to class probabilities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...errors import ModelMismatchError, ScoringFailedError
from ...etl.images.stored_image import MODES, Pixels
from ...training.checkpoints.checkpoint import Checkpoint
from ...training.checkpoints.keras_output import layers_give_logits, values_are_logits
from ...training.tasks.registry import task_of
from .failures import first_line, is_of_the_machine

if TYPE_CHECKING:
    import keras


@dataclass(frozen=True)
class CompiledModel:
    """A model that is ready to run.

    Attributes:
        function: uint8 [rows, height, width, channels] to float32 [rows, classes].
        classes: Number of classes.
    """

    function: Callable[[Pixels], npt.NDArray[np.float32]]
    classes: int


def compile_model(checkpoint: Checkpoint, custom_objects: Mapping[str, Any] | None = None) -> CompiledModel:
    """Loads the model, traces it once for any number of rows and tries it on one black image.

    A softmax converts logits to probabilities; probabilities stay unchanged. If a model of two classes, or of classes
    without names, gives one value per image, it belongs to the second class: a sigmoid converts its logit, and the
    first class gets the rest. The checkpoint records whether the model gives logits or probabilities. If it does not
    (written by an earlier lakelens or other code), the layers decide, see `layers_give_logits`. If they do not decide
    either, values outside [0, 1] for a black, a white and a noisy image are logits; these images are fixed, so that all
    Python workers decide alike.

    Raises:
        CheckpointError: If the file is damaged or has refused content, or the checkpoint's task is unknown.
        ModelMismatchError: If the model does not take the images that its checkpoint describes, or does not give one
            row of classes per image.
        ScoringFailedError: If the machine fails while the model is tried.
    """
    shape = checkpoint.input_shape
    if shape[2] not in MODES:
        raise ModelMismatchError(
            f"{checkpoint.path}: the model takes images with {shape[2]} channels; 1 (grey) and 3 (RGB) can be decoded"
        )
    recorded = task_of(checkpoint).gives_probabilities(checkpoint.metadata.get("task", {}))
    model = checkpoint.load_model(custom_objects=custom_objects)
    import tensorflow as tf

    def infer(pixels: tf.Tensor) -> tf.Tensor:
        output = model(tf.cast(pixels, tf.float32), training=False)
        if isinstance(output, (dict, list, tuple)):
            raise ModelMismatchError(
                f"{checkpoint.path}: the model has {len(output)} outputs; scoring needs one, of shape [rows, classes]"
            )
        return tf.cast(output, tf.float32)

    traced = tf.function(infer, input_signature=[tf.TensorSpec((None, *shape), tf.uint8)], autograph=False)

    def values(pixels: Pixels) -> npt.NDArray[np.float32]:
        return np.asarray(traced(pixels), dtype=np.float32)

    width = _try_out(values, checkpoint, "black", np.zeros(shape, np.uint8)).shape[1]
    logits = not recorded if recorded is not None else _gives_logits(values, model, checkpoint)
    is_binary = _is_binary(width, checkpoint)

    def probabilities(pixels: Pixels) -> npt.NDArray[np.float32]:
        output = traced(pixels)
        if logits:
            output = tf.nn.sigmoid(output) if is_binary else tf.nn.softmax(output)
        if is_binary:
            output = tf.concat([1 - output, output], axis=1)
        return np.asarray(output, dtype=np.float32)

    return CompiledModel(probabilities, 2 if is_binary else width)


def _is_binary(width: int, checkpoint: Checkpoint) -> bool:
    """Returns whether `width` values per image mean the second of two classes alone."""
    names = checkpoint.class_names
    return width == 1 and (names is None or len(names) == 2)


def _try_out(
    run: Callable[[Pixels], npt.NDArray[np.float32]], checkpoint: Checkpoint, name: str, image: Pixels
) -> npt.NDArray[np.float32]:
    """Runs the model on one image; a model that fails here would fail on every row."""
    height, width, channels = checkpoint.input_shape
    try:
        output = run(image[np.newaxis])
    except ModelMismatchError:
        raise
    # Layers can raise any exception; the caller needs one type that names the model.
    except Exception as error:
        if is_of_the_machine(error):
            raise ScoringFailedError(
                f"{checkpoint.path}: the model failed on a {name} image, {first_line(error)}"
            ) from error
        raise ModelMismatchError(
            f"{checkpoint.path}: the model raises on a {name} image of its own size, {height} x {width} x {channels}: "
            f"{first_line(error)}. Check `input` in the checkpoint's metadata against the model's input"
        ) from error
    if output.ndim != 2 or len(output) != 1:
        raise ModelMismatchError(
            f"{checkpoint.path}: for 1 image the model gives shape {output.shape}; scoring needs (1, classes)"
        )
    names = checkpoint.class_names
    if names is not None and output.shape[1] < len(names) and not _is_binary(output.shape[1], checkpoint):
        raise ModelMismatchError(
            f"{checkpoint.path}: the model gives {output.shape[1]} values per image, its checkpoint names "
            f"{len(names)} classes ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''}); end the model with one "
            "value per class"
        )
    return output


def _gives_logits(run: Callable[[Pixels], npt.NDArray[np.float32]], model: keras.Model, checkpoint: Checkpoint) -> bool:
    told = layers_give_logits(model)
    if told is None:
        told = values_are_logits(lambda image: _try_out(run, checkpoint, "test", image), checkpoint.input_shape)
    return told
