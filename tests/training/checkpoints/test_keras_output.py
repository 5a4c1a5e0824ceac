"""Rules by which a Keras model's values are logits or probabilities."""

from __future__ import annotations

import pytest

from lakelens.training.checkpoints.keras_output import gives_logits


@pytest.mark.tensorflow
def test_logits_are_told_by_the_layers_then_the_loss_then_the_values():
    import keras

    class Own(keras.layers.Layer):
        def __init__(self, low):
            super().__init__()
            self.low = low

        def call(self, inputs):
            return keras.ops.mean(inputs, axis=(1, 2)) / 255 + self.low

    def logits(last, loss):
        model = keras.Sequential([keras.Input((4, 4, 3)), *last])
        model.compile("sgd", loss)
        return gives_logits(model, (4, 4, 3))

    crossentropy = keras.losses.SparseCategoricalCrossentropy
    flat, dense = keras.layers.Flatten(), keras.layers.Dense(3)
    assert logits([flat, dense], crossentropy(from_logits=True)) is True
    assert logits([flat, dense, keras.layers.Softmax()], crossentropy(from_logits=True)) is False
    assert logits([Own(0.0)], crossentropy(from_logits=True)) is True
    assert logits([Own(-5.0)], crossentropy()) is False
    assert logits([Own(0.0)], "mse") is False
    assert logits([Own(-5.0)], "mse") is True
