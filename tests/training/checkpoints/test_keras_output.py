"""Rules by which a Keras model's values are logits or probabilities."""

from __future__ import annotations

import functools

import pytest

from lakelens.errors import TrialError
from lakelens.training.checkpoints.keras_output import gives_logits, layers_give_logits, loss_takes_logits

pytestmark = pytest.mark.tensorflow


def user_loss(true, given):
    return given


def user_loss_of_logits(true, given, from_logits=True):
    return given


def test_the_last_layer_decides_then_the_loss_and_never_the_values():
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
        return gives_logits(model)

    crossentropy = keras.losses.SparseCategoricalCrossentropy
    flat, dense = keras.layers.Flatten(), keras.layers.Dense(3)
    assert logits([flat, dense], crossentropy(from_logits=True)) is True
    assert logits([flat, dense, keras.layers.Softmax()], crossentropy(from_logits=True)) is False
    assert logits([Own(0.0)], crossentropy(from_logits=True)) is True
    assert logits([Own(-5.0)], crossentropy()) is False
    assert logits([Own(0.0)], "mse") is None
    assert logits([Own(-5.0)], "mse") is None


def test_a_loss_shows_what_it_takes_by_from_logits_in_every_form_that_compile_takes():
    import keras

    losses = keras.losses

    class Own(losses.Loss):
        from_logits = True

        def call(self, true, given):
            return given

    of_logits = [
        losses.CategoricalFocalCrossentropy(from_logits=True),
        functools.partial(losses.sparse_categorical_crossentropy, from_logits=True),
        user_loss_of_logits,
        Own(),
        [losses.BinaryCrossentropy(from_logits=True)],
    ]
    of_probabilities = [
        "sparse_categorical_crossentropy",
        "SparseCategoricalCrossentropy",
        losses.binary_crossentropy,
        functools.partial(losses.categorical_crossentropy, label_smoothing=0.1),
        {"out": "binary_crossentropy"},
    ]
    silent = [None, "mse", losses.CategoricalHinge(), user_loss, lambda true, given: given, ["mse", "mse"]]
    assert [loss_takes_logits(loss) for loss in of_logits] == [True] * len(of_logits)
    assert [loss_takes_logits(loss) for loss in of_probabilities] == [False] * len(of_probabilities)
    assert [loss_takes_logits(loss) for loss in silent] == [None] * len(silent)


def test_operations_of_keras_count_as_its_layers_do_and_a_softmax_over_the_rows_of_a_batch_is_refused():
    import keras

    images = keras.Input((4, 4, 3))
    values = keras.layers.Dense(3)(keras.layers.Flatten()(images))
    last = {
        "softmax": (keras.ops.softmax, False),
        "sigmoid": (keras.ops.sigmoid, False),
        "log softmax": (keras.ops.log_softmax, True),
        "twice": (lambda given: given * 2, None),
        "normalized": (keras.layers.BatchNormalization(), None),
    }
    for name, (call, wanted) in last.items():
        assert layers_give_logits(keras.Model(images, call(values))) is wanted, name
    for softmax in (keras.layers.Softmax(axis=0), functools.partial(keras.ops.softmax, axis=-2)):
        with pytest.raises(TrialError, match=r"softmax over axis (0|-2), the rows of a batch.*use axis=-1"):
            layers_give_logits(keras.Model(images, softmax(values)))


def test_layers_that_make_no_new_numbers_change_neither_logits_nor_probabilities():
    import keras

    images = keras.Input((4, 4, 3))
    for activation, wanted in (("softmax", False), ("sigmoid", False), (None, True)):
        dense = keras.layers.Dense(3, activation)(keras.layers.GlobalAveragePooling2D()(images))
        inner = keras.Model(images, keras.layers.Dropout(0.5)(dense))
        values = keras.layers.Flatten()(keras.layers.Reshape((3, 1))(inner(images)))
        values = keras.ops.cast(keras.layers.Activation("linear", dtype="float32")(values), "float32")
        assert layers_give_logits(keras.Model(images, values)) is wanted
    pooled = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(3, 1)(images))
    assert layers_give_logits(keras.Model(images, pooled)) is True
