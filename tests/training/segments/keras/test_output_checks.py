"""Rules of what a Keras model may give: one tensor, of a kind that is known before the first step."""

from __future__ import annotations

import numpy as np
import pytest

from lakelens.errors import NotProbabilitiesError, TrialError
from lakelens.training.tasks.classification import Classification
from lakelens.training.tasks.detection import Detection
from lakelens.training.trials.context import TrialContext

pytestmark = pytest.mark.tensorflow

SIDE = 8


def own_loss(true, given):
    return given[:, 0]


def checked(build, loss=own_loss, outputs=None, task=None):
    """Checks the model that a Trial of three classes builds, as a rank does; gives the description of its output."""
    from lakelens.training.segments.keras.checks import check_model
    from lakelens.training.trials.keras_trial import KerasTrial

    class Trial(KerasTrial):
        def build_model(self):
            model = build()
            model.compile("sgd", loss)
            return model

    Trial.outputs = outputs
    trial = Trial(TrialContext(task=task or Classification(["a", "b", "c"]), image_size=(SIDE, SIDE)))
    return trial.context.task.describe_output(check_model(trial.build_model(), trial))


def functional(make):
    import keras

    images = keras.Input((SIDE, SIDE, 3))
    dense = keras.layers.Dense(3)(keras.layers.Flatten()(images))
    return keras.Model(images, make(dense))


def subclassed(make, *, eager=False):
    import keras

    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.flat, self.head = keras.layers.Flatten(), keras.layers.Dense(3)

        def build(self, shape):
            self.flat.build(shape)
            self.head.build((None, SIDE * SIDE * 3))
            self.built = True

        def call(self, images, training=False):
            if eager:
                images = np.asarray(images)  # which a symbolic tensor refuses
            return make(self.head(self.flat(images)))

    return Net()


@pytest.mark.parametrize("seed", range(6))
def test_a_model_that_shows_nothing_is_refused_for_every_seed_and_trained_as_its_trial_states(seed):
    import keras

    keras.utils.set_random_seed(seed)
    with pytest.raises(TrialError, match="outputs = 'logits' or outputs = 'probabilities' in the Trial's class"):
        checked(lambda: subclassed(lambda values: values))
    assert checked(lambda: subclassed(lambda values: values), outputs="logits") == {"values": "logits"}


def test_a_model_that_is_said_to_give_probabilities_is_tried_before_the_first_step():
    with pytest.raises(NotProbabilitiesError, match="recorded as giving probabilities, but gives values from"):
        checked(lambda: subclassed(lambda values: values - 5), "sparse_categorical_crossentropy")
    import keras

    sigmoids = lambda: subclassed(keras.ops.sigmoid)  # noqa: E731
    assert checked(sigmoids, outputs="probabilities") == {"values": "probabilities"}


MAKES = {"dict of one": lambda values: {"a": values}, "list of two": lambda values: [values, values * 2]}


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
@pytest.mark.parametrize(
    "build",
    [functional, subclassed, lambda make: subclassed(make, eager=True)],
    ids=["functional", "subclassed", "of real images"],
)
def test_a_model_with_a_dict_or_several_outputs_is_refused_before_the_first_step(make, build):
    with pytest.raises(TrialError, match=r"a classifier must give one tensor|one of shape \[rows, classes\] is needed"):
        checked(lambda: build(make), outputs="logits")
    with pytest.raises(TrialError, match=r"for task detection and 3 classes it must give|boxes of 3 classes are"):
        checked(lambda: build(make), task=Detection(["a", "b", "c"]))


def test_a_list_of_one_output_is_that_output():
    assert checked(lambda: functional(lambda values: [values])) == {"values": "logits"}


def test_a_validation_refuses_values_that_left_the_probabilities():
    import keras
    import tensorflow as tf

    from lakelens.training.segments.keras.validation import Validation

    model = subclassed(lambda values: values)
    model.build((None, SIDE, SIDE, 3))
    model.compile("sgd", "mse")
    for weight in model.weights:
        weight.assign(keras.ops.ones_like(weight))
    rows = (np.ones((4, SIDE, SIDE, 3), np.float32), np.zeros((4, 3), np.float32), np.ones(4, np.float32))
    validation = Validation(tf.data.Dataset.from_tensor_slices(rows).batch(2), 4, 2)
    task = Classification(["a", "b", "c"])
    with pytest.raises(NotProbabilitiesError, match="values from 193 to 193"):
        validation.measure(model, task, {"values": "probabilities"}, None)
    assert validation.measure(model, task, {"values": "logits"}, None)["val_loss"] > 0


@pytest.mark.parametrize("form", [lambda loss: loss, lambda loss: [loss], lambda loss: {"dense": loss}])
@pytest.mark.parametrize("reduction", ["sum", "sum_over_batch_size", "mean_with_sample_weight"])
def test_workers_that_share_a_batch_have_no_loss_that_is_a_sum_over_rows(form, reduction):
    import keras

    from lakelens.training.segments.keras.checks import refuse_sums

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="dense")])
    model.compile("sgd", form(keras.losses.MeanSquaredError(reduction=reduction)))
    if reduction != "sum":
        refuse_sums(model)
        return
    with pytest.raises(TrialError, match=r"'mean_squared_error' has reduction='sum'.*or train on one rank"):
        refuse_sums(model)
