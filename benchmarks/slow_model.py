"""A Keras model on an emulated accelerator: each layer sleeps in its forward and in its backward pass.

The sleeps are operations of the traced step, so that gradients become ready one after another, last layer first, as on
a device that computes while the host's threads are free. A sleep holds one of TensorFlow's threads and no processor.
Gradients are constants of the rank, so that the weights to be expected are known.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf


class SlowLayer(keras.layers.Layer):
    """Passes its input on and has gradients of `slope` for each of its weights."""

    def __init__(self, sizes: Sequence[int], forward_s: float, backward_s: float, slope: float, **options: Any) -> None:
        super().__init__(**options)
        self.sizes, self.forward_s, self.backward_s, self.slope = tuple(sizes), forward_s, backward_s, slope

    def build(self, _: Any) -> None:
        """Makes the variables."""
        self.parts = [self.add_weight(shape=(size,), initializer="zeros") for size in self.sizes]

    def call(self, inputs: Any) -> Any:
        """Gives the input back after the sleep."""

        @tf.custom_gradient
        def work(values: Any, *parts: Any) -> Any:
            def gradient(upstream: Any, variables: Any = None) -> Any:
                ready = _asleep(upstream, self.backward_s)
                # Of the upstream gradient, which is 1, or the gradients would be there before the sleep is over.
                slope = self.slope * ready[0, 0]
                return ready, *(tf.fill(tf.shape(part), slope) for part in parts)

            return _asleep(values, self.forward_s), gradient

        return work(inputs, *(tf.convert_to_tensor(part) for part in self.parts))


def _asleep(values: Any, seconds: float) -> Any:
    if seconds <= 0:
        return tf.identity(values)

    def sleep(array: np.ndarray) -> np.ndarray:
        time.sleep(seconds)
        return array

    after = tf.numpy_function(sleep, [values], values.dtype)
    after.set_shape(values.shape)
    return after


def slow_model(
    layers: int, variables: int, numbers: int, forward_s: float, backward_s: Sequence[float], slope: float
) -> Any:
    """Makes a model of `layers` slow layers."""
    size = max(1, round(numbers / layers / variables))
    inputs = keras.Input((1,))
    outputs = inputs
    for layer in range(layers):
        outputs = SlowLayer([size] * variables, forward_s / layers, backward_s[layer], slope)(outputs)
    return keras.Model(inputs, outputs)


class StepTimes(keras.callbacks.Callback):
    """Keeps the time at which each step ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Takes the time."""
        self.ends.append(time.perf_counter())
