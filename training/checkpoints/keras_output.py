"""Whether a Keras model gives logits or probabilities: from its layers, its loss, or its values."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..keras_internals import producer

if TYPE_CHECKING:
    import keras

# Keras's own layers and operations after which logits are still logits, and probabilities probabilities.
_TRANSPARENT = re.compile(
    r"((Alpha|Gaussian|Spatial)?Dropout|GaussianNoise|Identity|Flatten|Permute|Reshape|Squeeze|Cast"
    r"|(Adaptive|Global)?(Average|Max)Pooling)([123]D)?"
)
# By how much rounding to half precision may move a probability out of its range.
_ROUNDING = 1e-2


def gives_logits(model: keras.Model, image_shape: tuple[int, int, int]) -> bool | None:
    """Returns whether a compiled model gives logits; None if that is unknown.

    The last layer that makes new numbers decides; then `from_logits` of the loss; and of a model of which neither
    tells (a subclassed model, a user's own last layer) the values that it gives for some images.

    Args:
        model: The model.
        image_shape: Height, width and channels of its images.
    """
    told = layers_give_logits(model)
    if told is None:
        told = getattr(model.loss, "from_logits", None)
    if told is not None:
        return bool(told)

    def run(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        return np.asarray(model(image[np.newaxis].astype(np.float32), training=False), np.float32)

    try:
        return values_are_logits(run, image_shape)
    except Exception:  # noqa: BLE001  the user's own code, which may need other batches, or gives several outputs
        return None


def layers_give_logits(model: keras.Model) -> bool | None:
    """Tells from a model's layers whether its values are logits or probabilities; None where they do not tell.

    The layer that decides is the last one that makes new numbers: what only casts, reshapes, drops or pools them, or is
    a linear `Activation`, is skipped. Without activation it gives logits, with softmax or sigmoid probabilities.
    """
    import keras

    probable = (keras.activations.softmax, keras.activations.sigmoid, keras.activations.hard_sigmoid)
    tensors: Sequence[Any] = getattr(model, "outputs", None) or ()
    while len(tensors) == 1:
        layer, taken = producer(tensors[0])
        if isinstance(layer, keras.Model):
            return layers_give_logits(layer)
        activation = getattr(layer, "activation", None)
        kind = type(layer).__name__ if type(layer).__module__.startswith("keras.") else "the user's own"
        if activation in probable or kind in ("Softmax", "Sigmoid"):
            return False
        linear = activation is keras.activations.linear
        if not _TRANSPARENT.fullmatch(kind) and not (linear and kind == "Activation"):
            return True if linear else None
        tensors = taken
    return None


def values_are_logits(
    run: Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.float32]], image_shape: tuple[int, int, int]
) -> bool:
    """Tells from a model's values for a black, a white and a noisy image whether they cannot be probabilities.

    Args:
        run: Gives the values of one image [height, width, channels].
        image_shape: Of that image.
    """
    images = (
        np.zeros(image_shape, np.uint8),
        np.full(image_shape, 255, np.uint8),
        np.random.default_rng(0).integers(0, 256, image_shape, np.uint8),
    )
    output = np.concatenate([run(image) for image in images])
    finite = output[np.isfinite(output)]
    return bool(((finite < -_ROUNDING) | (finite > 1 + _ROUNDING)).any())
