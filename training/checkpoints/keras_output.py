"""Whether a Keras model gives logits or probabilities: from its last layer, then from its loss."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...errors import TrialError
from ..keras_internals import producer

if TYPE_CHECKING:
    import keras

# Keras's own layers and operations after which logits are still logits, and probabilities probabilities.
_TRANSPARENT = re.compile(
    r"((Alpha|Gaussian|Spatial)?Dropout|GaussianNoise|Identity|Flatten|Permute|Reshape|Squeeze|Cast"
    r"|(Adaptive|Global)?(Average|Max)Pooling)([123]D)?"
)


def gives_logits(model: keras.Model) -> bool | None:
    """Returns whether a model gives logits: by its layers, else by its loss; None if neither shows it."""
    # Its values never decide: those of untrained weights may lie in any range.
    shown = layers_give_logits(model)
    return loss_takes_logits(getattr(model, "loss", None)) if shown is None else shown


def loss_takes_logits(loss: Any) -> bool | None:
    """Returns `from_logits` of a loss: an object, a function or a name in Keras; None without one."""
    import keras

    if isinstance(loss, (dict, list, tuple)):
        only = list(loss.values() if isinstance(loss, dict) else loss)
        return loss_takes_logits(only[0]) if len(only) == 1 else None
    if isinstance(loss, str):
        loss = keras.losses.get(loss)
    found = getattr(loss, "from_logits", None)
    if found is None and callable(loss):
        try:
            parameter = inspect.signature(loss).parameters.get("from_logits")  # of a partial, what it sets
        except (TypeError, ValueError):  # a function of C shows no parameters
            parameter = None
        found = None if parameter is None else parameter.default
    return found if isinstance(found, bool) else None


def layers_give_logits(model: keras.Model) -> bool | None:
    """Tells from the last layer that makes new numbers whether a model gives logits; None if it does not show it."""
    import keras

    probable = (keras.activations.softmax, keras.activations.sigmoid, keras.activations.hard_sigmoid)
    tensors: Sequence[Any] = getattr(model, "outputs", None) or ()
    while len(tensors) == 1:
        layer, taken = producer(tensors[0])
        if isinstance(layer, keras.Model):
            return layers_give_logits(layer)
        activation = getattr(layer, "activation", None)
        kind = type(layer).__name__ if type(layer).__module__.startswith("keras.") else "the user's own"
        if kind == "Softmax":
            _require_rows_of_their_own(layer, len(tensors[0].shape))
        if activation in probable or kind in ("Softmax", "Sigmoid", "HardSigmoid"):
            return False
        # The softmax of log-softmax values is that of the logits.
        if activation is keras.activations.log_softmax or kind == "LogSoftmax":
            return True
        linear = activation is keras.activations.linear
        if not _TRANSPARENT.fullmatch(kind) and not (linear and kind == "Activation"):
            return True if linear else None
        tensors = taken
    return None


def _require_rows_of_their_own(softmax: Any, dimensions: int) -> None:
    axis = getattr(softmax, "axis", -1)
    axes = axis if isinstance(axis, (list, tuple)) else [axis]
    if any(each in (0, -dimensions) for each in axes):
        raise TrialError(
            f"the model ends in a softmax over axis {axis}, the rows of a batch, so the values of an image depend on "
            "the other images; use axis=-1"
        )
