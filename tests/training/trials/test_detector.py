"""Rules of the ready-made detector: geometry of its candidates, sizes, backbones, loss, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from lakelens.errors import InvalidHyperparameters, TrialError
from lakelens.training.tasks.detection import Detection
from lakelens.training.trials.context import TrialContext

pytestmark = pytest.mark.tensorflow
CLASSES = ("a", "b", "c")


def built(size=(60, 76), /, **hyperparameters):
    from lakelens.training.trials.detector import Detector

    context = TrialContext(hyperparameters=hyperparameters, task=Detection(CLASSES), image_size=size)
    model = Detector(context).build_model()
    context.require_all_used()
    return model


def perfect(loss, truths: np.ndarray) -> np.ndarray:
    """Gives for each location the box and the class of the object that it answers for."""
    index, matched, _ = (np.asarray(each) for each in loss._targets(truths))
    places = loss._places
    answers = np.zeros((1, len(places), 4 + len(CLASSES)), np.float32)
    answers[0, :, :4] = np.concatenate([places - 1, places + 1], axis=1)
    answers[0, :, 4:] = -12
    for place in np.flatnonzero(matched[0]):
        truth = truths[0, index[0, place]]
        answers[0, place, :4], answers[0, place, 4 + int(truth[4])] = truth[:4], 12
    return answers


@pytest.mark.parametrize("size", [(60, 76), (33, 47), (64, 64)])
def test_a_candidate_lies_around_its_location_whatever_the_size(size):
    model = built(size)
    answers = model(np.zeros((1, *size, 3), np.float32)).numpy()[0]
    assert answers.shape == (sum(-(-size[0] // s) * -(-size[1] // s) for s in (8, 16)), 7)
    places = model.loss._places
    assert (answers[:, :2] < places).all()
    assert (answers[:, 2:4] > places).all()
    assert (places > 0).all()
    assert (places < size[::-1]).all()


def test_a_model_that_letterboxes_within_gives_boxes_in_pixels_of_its_images():
    model = built((40, 80), image_size=32)
    places = model.loss._places
    # 80 x 40 becomes 32 x 16 in the middle of 32 x 32: a row of the grid is 20 pixels of the image.
    np.testing.assert_allclose(np.unique(places[:16, 0]), [10, 30, 50, 70])
    np.testing.assert_allclose(np.unique(places[:16, 1]), [-10, 10, 30, 50])


def test_small_objects_are_found_on_the_fine_level_and_ignored_ones_are_no_background():
    loss = built((64, 64)).loss
    truths = np.array([[[4, 4, 20, 20, 1, 0], [0, 0, 64, 64, 2, 0], [40, 40, 60, 60, 0, 1]]], np.float32)
    index, matched, counted = (np.asarray(each)[0] for each in loss._targets(truths))
    fine = 64
    assert set(index[:fine][matched[:fine] > 0]) == {0, 1}
    large = np.array([[[0, 0, 64, 65, 2, 0]]], np.float32)
    _, matched_large, _ = (np.asarray(each)[0] for each in loss._targets(large))
    assert not matched_large[:fine].any()
    assert matched_large[fine:].any()
    inside = ((loss._places > 40) & (loss._places < 60)).all(axis=1)
    assert not counted[inside & (matched == 0)].any()
    assert counted[~inside].all()


def test_the_loss_of_perfect_answers_is_near_zero_and_padding_changes_nothing():
    loss = built((64, 64)).loss
    truths = np.array([[[4, 4, 30, 28, 1, 0], [34, 30, 60, 62, 2, 0]]], np.float32)
    answers = perfect(loss, truths)
    best = float(loss(truths, answers))
    assert best < 1e-3
    padded = np.concatenate([truths, [[[0, 0, 0, 0, -1, 0]] * 3]], axis=1).astype(np.float32)
    assert float(loss(padded, answers)) == pytest.approx(best)
    moved = answers + np.array([6, 0, 6, 0, 0, 0, 0], np.float32)
    assert float(loss(truths, moved)) > best + 0.3
    nothing = np.array([[[0, 0, 0, 0, -1, 0]]], np.float32)
    assert np.isfinite(float(loss(nothing, answers)))


def test_a_network_of_keras_applications_takes_weights_from_a_path(tmp_path):
    import keras

    plain = keras.applications.MobileNetV2(include_top=False, weights=None, input_shape=(64, 96, 3))
    plain.save_weights(tmp_path / "backbone.weights.h5")
    model = built((64, 96), backbone="MobileNetV2", weights=str(tmp_path / "backbone.weights.h5"), width=16)
    assert model.output_shape == (None, 8 * 12 + 4 * 6, 7)
    (inner,) = [layer for layer in model.layers if isinstance(layer, keras.Model)]
    np.testing.assert_array_equal(inner.get_layer("Conv1").get_weights()[0], plain.get_layer("Conv1").get_weights()[0])
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras", compile=False, safe_mode=True)
    image = np.random.default_rng(0).uniform(0, 255, (1, 64, 96, 3)).astype(np.float32)
    np.testing.assert_allclose(loaded(image).numpy(), model(image).numpy(), atol=1e-4)


@pytest.mark.parametrize(
    ("hyperparameters", "words"),
    [
        ({"strides": [8, 32]}, r"'strides' is \[8, 32\]; give powers of two from 4 to 32"),
        ({"strides": [16, 32]}, r"backbone 'small' has strides"),
        ({"width": 0}, r"'width' is 0; it must be at least 1"),
        ({"image_size": 8}, r"'image_size' is 8; it must be at least 32"),
        ({"weights": "imagenet"}, r"'weights' is 'imagenet', and backbone 'small' trains from random weights"),
        ({"backbone": "MobileNetV9"}, r"no backbone 'MobileNetV9'; did you mean 'MobileNet"),
        ({"shift": 2.0}, r"'shift' is 2.0; it is a part from 0 to 1"),
    ],
)
def test_a_hyperparameter_without_sense_is_refused(hyperparameters, words):
    with pytest.raises(InvalidHyperparameters, match=words):
        built(**hyperparameters)


def test_weights_that_do_not_exist_are_refused_by_their_path():
    with pytest.raises(TrialError, match=r"weights is '/nowhere': the file does not exist"):
        built(backbone="MobileNetV2", weights="/nowhere")
