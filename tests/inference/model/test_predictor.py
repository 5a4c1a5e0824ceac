"""Rules of the predictor: what it says of good images, and of every kind of bad one; no Spark."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from colours import NAMES, SIDE, colour_model, image_of, save
from PIL import Image

from lakelens.errors import ModelMismatchError, ScoringFailedError
from lakelens.inference.model.predictor import DEFAULT_BATCH_BYTES, Predictor, build_predictor
from lakelens.inference.model.user_code import UserCode
from lakelens.training.tasks.classification import Classification

pytestmark = pytest.mark.tensorflow

TWO = Classification(["a", "b"])


def names_in(given):
    arrays = Classification(NAMES).prediction_arrays(given.answers, given.valid, given.frames, (SIDE, SIDE))
    return arrays["predicted_name"].to_pylist()


def load(checkpoint):
    return build_predictor(checkpoint, DEFAULT_BATCH_BYTES, 1, UserCode())


def of_pixels(function, pixels, **options):
    """What is predicted for images of one pixel by a model of two classes."""
    predictor = Predictor(function, TWO, input_shape=(1, 1, 3), answer_shape=(2,), **options)
    return predictor.predict(pixels, ["raw_rgb"] * len(pixels), [1] * len(pixels), [1] * len(pixels))


def test_each_image_of_any_format_and_size_gets_its_class_name_and_probabilities(checkpoint):
    kinds = {"jpeg": (SIDE, 40), "png": (SIDE,), "raw_rgb": (SIDE, 4)}
    images = [(name, form, side) for form, sides in kinds.items() for side in sides for name in NAMES]
    names, forms, sides = zip(*images, strict=True)
    stored = [image_of(name, side, form if form == "raw_rgb" else form.upper()) for name, form, side in images]
    given = load(checkpoint).predict(stored, forms, sides, sides)
    assert names_in(given) == list(names)
    assert np.allclose(given.answers.sum(axis=1), 1, atol=1e-5)
    assert given.errors == [None] * len(images)


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


def test_batches_are_bounded_by_bytes_and_keep_the_order():
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


def test_a_model_that_does_not_fit_its_checkpoint_is_refused(tmp_path):
    with pytest.raises(ModelMismatchError, match="black image of its input size"):
        load(save(colour_model(), tmp_path, input={"height": SIDE, "width": SIDE, "channels": 1}))
