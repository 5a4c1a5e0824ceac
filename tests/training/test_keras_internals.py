"""The private names of Keras: each test fails if Keras removes or changes one."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from lakelens.training.keras_internals import (
    build_for,
    flattened_layers,
    given_learning_rate,
    logged_metrics,
    never_build_again,
    place_among_updated,
    producer,
    untrained_variables,
    updated_variables,
)

pytestmark = pytest.mark.tensorflow


def compiled_model(optimizer="sgd"):
    import keras

    class Holder(keras.layers.Layer):
        """Holds layers where no list of layers shows them."""

        def __init__(self):
            super().__init__()
            self.inner = {"norm": keras.layers.BatchNormalization(name="hidden")}

        def call(self, inputs, training=None):
            return self.inner["norm"](inputs, training=training)

    model = keras.Sequential([keras.Input((4,)), Holder(), keras.layers.Dense(2, name="last")])
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def test_layers_within_layers_are_found():
    model = compiled_model()
    names = [layer.name for layer in flattened_layers(model)]
    assert {model.name, "hidden", "last"} <= set(names)
    assert "hidden" not in [layer.name for layer in model.layers]


def test_weights_of_a_frozen_layer_are_not_untrained_variables():
    model = compiled_model()
    (norm,) = [layer for layer in flattened_layers(model) if layer.name == "hidden"]
    norm.trainable = False
    assert [variable.name for variable in untrained_variables(norm)] == ["moving_mean", "moving_variance"]
    assert len(norm.non_trainable_variables) == 4


def test_metrics_are_built_from_the_specification_of_a_batch():
    import tensorflow as tf

    model = compiled_model()
    batch = tf.TensorSpec((None, 4)), tf.TensorSpec((None, 2)), tf.TensorSpec((None,))
    build_for(model, batch)
    assert list(model.get_metrics_result()) == ["loss", "mae"]


def test_evaluate_does_not_build_again():
    model = compiled_model()
    never_build_again(model)
    assert "_maybe_symbolic_build" in inspect.getsource(type(model).evaluate)
    assert model._maybe_symbolic_build(iterator=None) is None


def test_logged_metrics_are_those_of_the_model_or_what_a_custom_step_returns():
    model = compiled_model()
    model.train_on_batch(np.ones((2, 4)), np.ones((2, 2)))
    assert logged_metrics(model, dict.fromkeys(("loss", "mae"), -1.0))["mae"] != -1.0
    assert logged_metrics(model, {"own": 3.0}) == {"own": 3.0}


def test_the_producer_of_a_tensor_and_its_inputs_are_found():
    model = compiled_model()
    layer, (taken,) = producer(model.outputs[0])
    assert layer.name == "last"
    assert producer(taken)[0] is model.layers[0]


def test_a_learning_rate_is_that_which_the_optimizer_was_given():
    import keras

    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    assert given_learning_rate(keras.optimizers.SGD(schedule)) is schedule
    assert float(given_learning_rate(keras.optimizers.SGD(0.5))) == 0.5


def test_updated_variables_are_in_the_order_of_their_build():
    model = compiled_model("adam")
    variables = list(model.trainable_variables)[::-1]
    model.optimizer.build(variables)
    assert [id(each) for each in updated_variables(model.optimizer)] == [id(each) for each in variables]
    assert [place_among_updated(model.optimizer, each) for each in variables] == list(range(len(variables)))


def test_keras_calls_the_methods_that_subclasses_override():
    import keras

    assert list(inspect.signature(keras.layers.BatchNormalization._moments).parameters) == ["self", "inputs", "mask"]
    assert "self._moments(" in inspect.getsource(keras.layers.BatchNormalization.call)
    found = [kind for kind in keras.optimizers.Adam.__mro__ if "_all_reduce_sum_gradients" in vars(kind)]
    assert list(inspect.signature(found[0]._all_reduce_sum_gradients).parameters) == ["self", "grads_and_vars"]
    assert "self._all_reduce_sum_gradients(" in inspect.getsource(found[0])
