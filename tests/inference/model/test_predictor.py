"""Rules of the predictor: what it says of good images, and of every kind of bad one; no Spark."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from colours import LOGITS, NAMES, PROBABILITIES, SIDE, colour_model, image_of, save
from PIL import Image

from lakelens.errors import ModelMismatchError, ScoringFailedError
from lakelens.inference.model.predictor import DEFAULT_BATCH_BYTES, Predictor, build_predictor
from lakelens.inference.model.user_code import UserCode
from lakelens.training.checkpoints.checkpoint import open_checkpoint
from lakelens.training.tasks.classification import Classification

pytestmark = pytest.mark.tensorflow

TWO = Classification(["a", "b"])


def column_of(given, name, names):
    return (
        Classification(names)
        .prediction_arrays(given.answers, given.valid, given.frames, (SIDE, SIDE))[name]
        .to_pylist()
    )


def labels_in(given):
    return column_of(given, "prediction", NAMES)


def names_in(given, names=NAMES):
    return column_of(given, "predicted_name", names)


def load(path, custom_objects=None):
    return build_predictor(open_checkpoint(path), DEFAULT_BATCH_BYTES, 1, UserCode(custom_objects or {}))


def of_pixels(function, pixels, **options):
    """What is predicted for images of one pixel by a model of two classes."""
    predictor = Predictor(function, TWO, input_shape=(1, 1, 3), answer_shape=(2,), **options)
    return predictor.predict(pixels, ["raw_rgb"] * len(pixels), [1] * len(pixels), [1] * len(pixels))


@pytest.fixture(scope="module")
def predictor(checkpoint):
    return load(checkpoint.path)


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_each_image_gets_its_class_name_and_probabilities(predictor, form):
    given = predictor.predict([image_of(name, form=form) for name in NAMES])
    assert names_in(given) == list(NAMES)
    assert labels_in(given) == [0, 1, 2]
    assert np.allclose(given.answers.sum(axis=1), 1, atol=1e-5)
    assert given.errors == [None] * 3


def test_raw_pixels_and_images_of_another_size_are_scored_too(predictor):
    images = [image_of("green", form="raw_rgb"), image_of("blue", side=40), image_of("red", side=4, form="raw_rgb")]
    given = predictor.predict(images, ["raw_rgb", "jpeg", "raw_rgb"], [SIDE, 40, 4], [SIDE, 40, 4])
    assert names_in(given) == ["green", "blue", "red"]


def test_only_the_row_that_makes_the_model_raise_gets_its_error():
    def picky(pixels):
        if (pixels[:, 0, 0, 0] == 7).any():
            raise ValueError("seven is not for me")
        return np.tile(np.array([0.25, 0.75], np.float32), (len(pixels), 1))

    given = of_pixels(picky, [bytes([7 if n in (3, 11) else n, 0, 0]) for n in range(20)])
    bad = {n for n, error in enumerate(given.errors) if error}
    assert bad == {3, 7, 11}
    assert given.errors[3] == "model_raised: ValueError: seven is not for me"


def test_a_fault_of_the_machine_or_the_model_fails_the_predictions_and_is_no_error_of_a_row():
    for error in (MemoryError("no more"), OSError(5, "Input/output error"), RuntimeError("the device is gone")):
        calls: list[int] = []

        def from_the_second_call_on(pixels, calls=calls, error=error):
            calls.append(len(pixels))
            if len(calls) > 1:
                raise error
            return np.full((len(pixels), 2), 0.5, np.float32)

        with pytest.raises(ScoringFailedError, match=str(error).replace("[", r"\[")):
            of_pixels(from_the_second_call_on, [bytes([n, 0, 0]) for n in range(8)], batch_bytes=4 * 12)


def test_a_row_on_which_the_model_raises_once_is_scored():
    raised = []

    def unsteady(pixels):
        if len(pixels) > 1 or (1 not in raised and pixels.any()):
            raised.append(len(pixels))
            raise RuntimeError("not now")
        return np.full((len(pixels), 2), 0.5, np.float32)

    given = of_pixels(unsteady, [bytes([n + 1, 0, 0]) for n in range(4)])
    assert raised == [4, 2, 1, 2]
    assert given.errors == [None] * 4


# A process that may have 150 MiB more than it has.
_STARVED = """
import resource, sys
from pathlib import Path
import numpy as np
from lakelens.inference.model.predictor import Predictor
from lakelens.training.tasks.classification import Classification

image = Path(sys.argv[1]).read_bytes()
predictor = Predictor(
    lambda pixels: np.ones((len(pixels), 1), np.float32), Classification(()), input_shape=(8, 8, 3), answer_shape=(1,)
)
predictor.predict([b"text"])
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (150 << 20),) * 2)
print(predictor.predict([image]).errors)
"""


def test_a_row_that_alone_takes_too_much_memory_has_an_error_of_its_own(tmp_path):
    script, image = tmp_path / "starved.py", tmp_path / "large.jpg"
    script.write_text(_STARVED)
    Image.new("RGB", (9000, 9000)).save(image)
    done = subprocess.run([sys.executable, script, image], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("['out_of_memory: "), done.stderr


def test_an_output_that_is_not_finite_is_an_error_of_its_row():
    def dividing(pixels):
        first = pixels[:, 0, 0, 0].astype(np.float32)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.stack([first / first, first / first], axis=1)

    given = of_pixels(dividing, [b"\x01\x00\x00", b"\x00\x00\x00"])
    assert given.errors[0] is None
    assert given.errors[1].startswith("not_finite")


def test_batches_are_bounded_by_bytes_and_keep_the_order(checkpoint):
    sizes = []

    def watched(pixels):
        sizes.append(len(pixels))
        return np.eye(3, dtype=np.float32)[pixels.reshape(len(pixels), -1, 3).mean(axis=1).argmax(axis=1)]

    row_bytes = SIDE * SIDE * 3 * 4
    predictor = Predictor(
        watched,
        Classification(NAMES),
        input_shape=(SIDE, SIDE, 3),
        answer_shape=(3,),
        batch_bytes=4 * row_bytes,
        decode_threads=3,
    )
    names = [NAMES[(n * n) % 3] for n in range(30)]
    assert names_in(predictor.predict([image_of(name) for name in names])) == names
    assert max(sizes) == 4
    assert sum(sizes) == 30


def test_one_value_per_image_is_the_second_of_two_classes(tmp_path):
    import keras

    layers = [keras.Input((SIDE, SIDE, 3)), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.layers[-1].set_weights([np.array([[0.02], [0], [-0.02]], np.float32), np.zeros(1, np.float32)])
    labels = {"0": "blue", "1": "red"}
    given = load(save(model, tmp_path, labels=labels).path).predict([image_of("red"), image_of("blue")])
    assert labels_in(given) == [1, 0]
    assert names_in(given, list(labels.values())) == ["red", "blue"]
    red, blue = given.answers
    assert red[1] == pytest.approx(blue[0], abs=1e-2)
    assert red[1] > 0.9
    assert given.answers.sum(axis=1) == pytest.approx([1, 1], abs=1e-6)


@pytest.mark.parametrize("activation", ["softmax", "linear"])
def test_a_model_whose_layers_do_not_tell_is_read_as_its_checkpoint_describes(tmp_path, activation):
    import keras

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.out = keras.layers.Dense(3, activation)
            self.body = keras.layers.Dense(3)

        def call(self, pixels):
            return self.out(self.body(keras.ops.mean(pixels, axis=(1, 2)) / 255))

        def get_config(self):
            return {}

    model = Own()
    model(np.zeros((1, SIDE, SIDE, 3), np.float32))
    for layer in model.layers:
        layer.set_weights([np.eye(3, dtype=np.float32) * 2, np.zeros(3, np.float32)])
    values = model(np.frombuffer(image_of("green", form="raw_rgb"), np.uint8).reshape(1, SIDE, SIDE, 3))[0]
    expected = values if activation == "softmax" else keras.ops.softmax(values)
    described = {"task": PROBABILITIES if activation == "softmax" else LOGITS}
    assert predicted(model, tmp_path, {"Own": Own}, **described) == pytest.approx(np.asarray(expected), abs=1e-5)


def predicted(model, folder, custom_objects=None, **metadata):
    """The model's probabilities for a green image."""
    path = save(model, folder, **metadata).path
    image = image_of("green", form="raw_rgb")
    return load(path, custom_objects).predict([image], ["raw_rgb"], [SIDE], [SIDE]).answers[0]


def test_a_model_that_does_not_fit_its_checkpoint_is_refused(tmp_path):
    wrong_size = save(colour_model(), tmp_path / "a", input={"height": SIDE, "width": SIDE, "channels": 1})
    with pytest.raises(ModelMismatchError, match="black image of its input size"):
        load(wrong_size.path)
    too_many = save(colour_model(), tmp_path / "b", labels={str(n): f"class {n}" for n in range(5)})
    with pytest.raises(ModelMismatchError, match="names 5 classes"):
        load(too_many.path)
