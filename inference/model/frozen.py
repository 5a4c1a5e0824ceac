"""A traced model as a graph whose weights are constants: TensorFlow folds and fuses more of it, and it runs faster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ...etl.images.stored_image import Pixels
from .failures import first_line

if TYPE_CHECKING:
    import tensorflow as tf

FROZEN, KERAS = "frozen graph", "Keras"
# Largest difference of an output to that of Keras.
TOLERANCE = 1e-5
# Outputs that differ less between the test images say nothing about whether two graphs agree.
_VARIES = 1e-4


def freeze(
    traced: tf.types.experimental.PolymorphicFunction, shape: tuple[int, int, int]
) -> tuple[Callable[[Pixels], Any], str]:
    """Freezes a model that takes uint8 pixels, and compares its outputs with those of Keras.

    Returns the function from uint8 [rows, *shape] to the model's outputs as NumPy arrays; and the engine: `FROZEN`, or
    Keras with the reason why the model is not frozen.
    """
    import tensorflow as tf

    def keras_outputs(pixels: Pixels) -> Any:
        return tf.nest.map_structure(np.asarray, traced(pixels))

    try:
        images = check_images(shape)
        expected = keras_outputs(
            images
        )  # first: freezing removes functions of the model that TensorFlow does not inline
        frozen_outputs = _frozen(traced)
        given = frozen_outputs(images)
    except Exception as error:  # noqa: BLE001  operations, layers and the converter raise whatever they raise
        return keras_outputs, f"{KERAS}: the model cannot be frozen, {first_line(error)}"
    problem = difference(tf.nest.flatten(expected), tf.nest.flatten(given))
    return (frozen_outputs, FROZEN) if problem is None else (keras_outputs, f"{KERAS}: frozen, {problem}")


@contextmanager
def without_tensor_float_32() -> Iterator[None]:
    """Computes float32 products on a GPU in float32, so that they may be compared with those of a processor."""
    import tensorflow as tf

    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


def difference(expected: list[Any], given: list[Any]) -> str | None:
    """Compares the outputs for the test images; returns None if they agree, or what speaks against them."""
    for one, other in zip(expected, given, strict=True):
        if one.shape != other.shape or not np.array_equal(np.isfinite(one), np.isfinite(other)):
            return "the model's outputs have other shapes, or values that are not finite"
        finite = np.isfinite(one)
        largest = float(np.abs(one - other)[finite].max(initial=0.0))
        # Boxes and logits may be large; float32 then has fewer digits behind the point.
        allowed = TOLERANCE * max(1.0, float(np.abs(one[finite]).max(initial=0.0)))
        if largest > allowed:
            return f"the model's outputs differ by up to {largest:.1e}, {allowed:.1e} is allowed"
    if all(np.ptp(one, axis=0).max(initial=0.0) < _VARIES for one in expected):
        return "the model's outputs would not be comparable: they are the same for all test images"
    return None


def check_images(shape: tuple[int, int, int]) -> Pixels:
    """Makes images on which two graphs are compared: flat colours, noise, and smooth fields with little noise.

    Returns uint8 [8, *shape]; the same in every process.
    """
    height, width, channels = shape
    random = np.random.default_rng(0)
    flat = [np.full(shape, level) for level in (0, 128, 255)] + [
        np.broadcast_to(random.integers(0, 256, channels), shape)
    ]
    noise = [random.integers(0, 256, shape), random.normal(128, 40, shape)]
    down, across = np.linspace(0, 1, height)[:, None, None], np.linspace(0, 1, width)[None, :, None]
    smooth = []
    for _ in range(2):
        a, b, phase = random.uniform(1, 9, (3, channels))
        waves = np.sin(a * down + b * across + phase) * np.cos(b * down - a * across)
        smooth.append(128 + 90 * waves + random.normal(0, 8, shape))
    return np.stack([np.clip(image, 0, 255).astype(np.uint8) for image in [*flat, *noise, *smooth]])


def frozen_function(
    traced: tf.types.experimental.PolymorphicFunction, *, keep_control_flow: bool = False
) -> tuple[tf.types.experimental.ConcreteFunction, tf.types.experimental.ConcreteFunction]:
    """Returns a traced function with its variables and captured tensors as constants; and as it was traced."""
    from tensorflow.python.framework.convert_to_constants import (  # TensorFlow has no public name for it
        convert_variables_to_constants_v2,
    )

    concrete = traced.get_concrete_function()
    options = {"lower_control_flow": False, "aggressive_inlining": True} if keep_control_flow else {}
    return convert_variables_to_constants_v2(concrete, **options), concrete


def _frozen(traced: tf.types.experimental.PolymorphicFunction) -> Callable[[Pixels], Any]:
    import tensorflow as tf

    constant, concrete = frozen_function(traced)

    def outputs(pixels: Pixels) -> Any:
        found = constant(tf.constant(pixels))
        return tf.nest.pack_sequence_as(
            concrete.structured_outputs, [np.asarray(part) for part in tf.nest.flatten(found)]
        )

    return outputs
