"""A checkpoint's Keras model as one traced function from pixels to class probabilities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import ModelMismatchError
from ..training.checkpoints import Checkpoint
from .decoding import MODES, Pixels

if TYPE_CHECKING:
    import keras

# Layers that leave the values of the layer before them as they are when the model is not training.
_TRANSPARENT = frozenset({"Dropout", "Identity"})


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

    A final layer without activation gives logits; they become probabilities by a softmax.

    Raises:
        CheckpointError: If the file is damaged or holds what is refused.
        ModelMismatchError: If the model does not take the images that its checkpoint describes, or does not give one
            row of classes per image.
    """
    shape = checkpoint.input_shape
    if shape[2] not in MODES:
        raise ModelMismatchError(
            f"{checkpoint.path}: the model takes images with {shape[2]} channels; 1 (grey) and 3 (RGB) can be decoded"
        )
    model = checkpoint.load_model(custom_objects=custom_objects)
    import tensorflow as tf

    softmax = _gives_logits(model)

    def infer(pixels: tf.Tensor) -> tf.Tensor:
        output = model(tf.cast(pixels, tf.float32), training=False)
        if isinstance(output, (dict, list, tuple)):
            raise ModelMismatchError(
                f"{checkpoint.path}: the model has {len(output)} outputs; scoring needs one, of shape [rows, classes]"
            )
        output = tf.cast(output, tf.float32)
        return tf.nn.softmax(output) if softmax else output

    traced = tf.function(infer, input_signature=[tf.TensorSpec((None, *shape), tf.uint8)], autograph=False)

    def run(pixels: Pixels) -> npt.NDArray[np.float32]:
        return np.asarray(traced(pixels), dtype=np.float32)

    return CompiledModel(run, _try_out(run, checkpoint))


def _try_out(run: Callable[[Pixels], npt.NDArray[np.float32]], checkpoint: Checkpoint) -> int:
    """Runs the model on one black image; a model that fails here fails on every row, which no row is to blame for."""
    height, width, channels = checkpoint.input_shape
    try:
        output = run(np.zeros((1, height, width, channels), np.uint8))
    except ModelMismatchError:
        raise
    # The model's layers raise what they like; the caller needs one type that says which model.
    except Exception as error:
        raise ModelMismatchError(
            f"{checkpoint.path}: the model raises on a black image of its own size, {height} x {width} x {channels}: "
            f"{type(error).__name__}: {error}. Check `input` in the checkpoint's metadata against the model's input"
        ) from error
    if output.ndim != 2 or len(output) != 1:
        raise ModelMismatchError(
            f"{checkpoint.path}: for 1 image the model gives shape {output.shape}; scoring needs (1, classes)"
        )
    names = checkpoint.class_names
    if names is not None and output.shape[1] < len(names):
        raise ModelMismatchError(
            f"{checkpoint.path}: the model gives {output.shape[1]} values per image, its checkpoint names "
            f"{len(names)} classes ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''}); end the model with one "
            "value per class"
        )
    return int(output.shape[1])


def _gives_logits(model: keras.Model) -> bool:
    """Tells whether the model's last layer has no activation, so that its values are logits and no probabilities."""
    import keras

    for layer in reversed(model.layers):
        if isinstance(layer, keras.Model):
            return _gives_logits(layer)
        activation = getattr(layer, "activation", None)
        if activation is not None:
            return bool(activation is keras.activations.linear)
        if type(layer).__name__ not in _TRANSPARENT:
            return False
    return False
