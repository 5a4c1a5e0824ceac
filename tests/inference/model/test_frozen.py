"""Rules of the frozen graph: it runs only where its outputs are those of Keras, on images over which they vary."""

from __future__ import annotations

import numpy as np
import pytest
from colours import SIDE, colour_model, layered

from lakelens.inference.model.onnx_engine import FROZEN, difference, freeze

pytestmark = pytest.mark.tensorflow

SHAPE = (SIDE, SIDE, 3)


def traced(model):
    import tensorflow as tf

    def infer(pixels):
        return model(tf.cast(pixels, tf.float32), training=False)

    return tf.function(infer, input_signature=[tf.TensorSpec((None, *SHAPE), tf.uint8)], autograph=False)


def test_a_model_is_frozen_with_the_outputs_of_keras():
    model = colour_model()
    function, engine = freeze(traced(model), SHAPE)
    assert engine == FROZEN
    pixels = np.random.default_rng(1).integers(0, 256, (5, *SHAPE), dtype=np.uint8)
    expected = np.asarray(model(pixels.astype(np.float32), training=False))
    assert np.ptp(expected, axis=0).max() > 1e-3
    assert np.abs(function(pixels) - expected).max() <= 1e-5


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("random", "outputs differ by up to"),
        ("constant", "same for all test images"),
        ("raises", "one image at a time"),
    ],
)
def test_a_model_that_cannot_be_compared_stays_with_keras_and_the_reason_is_named(kind, reason):
    import tensorflow as tf

    def refuse(values):
        if len(values) > 1:
            raise ValueError("one image at a time")
        return values

    def noisy(values):
        # Not TensorFlow's numbers: with a global seed, which other tests set, both graphs start with the same ones.
        return values + np.random.default_rng().random(values.shape, np.float32)

    def by_numpy(values, call):
        return tf.ensure_shape(tf.numpy_function(call, [values], tf.float32), values.shape)

    calls = {
        "random": lambda values: by_numpy(values, noisy),
        "constant": lambda values: values * 0,
        "raises": lambda values: by_numpy(values, refuse),
    }
    function, engine = freeze(traced(layered(calls[kind])), SHAPE)
    assert engine.startswith("Keras: ")
    assert reason in engine
    assert function(np.zeros((1, *SHAPE), np.uint8)).shape == (1, 3)


def test_outputs_are_compared_relative_to_their_size_and_values_that_are_not_finite_must_agree():
    one = np.array([[0.2, 0.8], [0.7, 0.3]], np.float32)
    assert difference([one], [one + 5e-6]) is None
    assert "differ by up to" in difference([one], [one + 5e-5])
    assert difference([one * 1000], [one * 1000 + 5e-3]) is None
    assert "not finite" in difference([one], [np.array([[np.nan, 0.8], [0.7, 0.3]], np.float32)])
    assert "the same for all" in difference([one[:1].repeat(2, axis=0)], [one[:1].repeat(2, axis=0)])
