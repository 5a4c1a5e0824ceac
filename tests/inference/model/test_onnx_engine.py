"""Rules of ONNX Runtime: a model runs without TensorFlow, with Keras' outputs, or is refused by name."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from boxes import image_with, save_detector
from colours import LOGITS, NAMES, SIDE, colour_model, image_of, layered, row, save, write_table

import lakelens
from lakelens.errors import InvalidArgumentError, ModelMismatchError
from lakelens.inference.model.compiled import compile_model, convert_model
from lakelens.inference.model.onnx_engine import EXPECTED_FILE, check_engine
from lakelens.inference.model.predictor import build_predictor
from lakelens.inference.model.user_code import UserCode
from lakelens.training.checkpoints.references import resolve_model

pytestmark = pytest.mark.tensorflow

# Predicts for image files, in a process that can import neither TensorFlow nor Keras.
ELSEWHERE = """
import json, sys
sys.modules |= {"tensorflow": None, "keras": None}
from pathlib import Path
from lakelens.inference.model.predictor import build_predictor
from lakelens.inference.model.user_code import UserCode
from lakelens.training.checkpoints.checkpoint import open_checkpoint
predictor = build_predictor(open_checkpoint(sys.argv[1]), 1 << 20, 1, UserCode(), "onnxruntime")
found = predictor.predict([Path(file).read_bytes() for file in sys.argv[2:]])
print(json.dumps([predictor.engine, found.answers.tolist(), found.errors]))
"""


@pytest.mark.parametrize("kind", ["classifier", "detector"])
def test_a_converted_model_gives_keras_answers_without_tensorflow(tmp_path, kind):
    import keras

    if kind == "classifier":
        # Normalization captures constants, its mean and variance, as the backbone of EfficientNet does.
        known = keras.layers.Normalization(mean=[100.0, 110.0, 120.0], variance=[900.0, 800.0, 700.0])
        pooled, classes = keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(3, "softmax")
        model = keras.Sequential([keras.Input((SIDE, SIDE, 3)), known, pooled, classes])
        classes.set_weights([np.eye(3, dtype=np.float32), np.zeros(3, np.float32)])
        # Without a description: whether the values are logits is found out when the model is converted.
        checkpoint, images = save(model, tmp_path), [image_of(name) for name in NAMES]
    else:
        squares = [("red", 0, 0), ("blue", 3, 2)], [("red", 7, 3)]
        checkpoint, images = save_detector(tmp_path), [image_with(one) for one in squares]
    convert_model(checkpoint, checkpoint.path)
    files = [tmp_path / f"{number}.image" for number in range(len(images))]
    for file, image in zip(files, images, strict=True):
        file.write_bytes(image)
    command = [sys.executable, "-c", ELSEWHERE, str(checkpoint.path), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    engine, answers, errors = json.loads(done.stdout.splitlines()[-1])
    expected = build_predictor(checkpoint, 1 << 20, 1, UserCode()).predict(images)
    assert (engine, errors) == ("ONNX Runtime", [None] * len(images))
    assert np.ptp(expected.answers, axis=0).max() > 0.1
    assert np.abs(np.array(answers) - expected.answers).max() <= 1e-4  # detections are in pixels


@pytest.mark.parametrize(("kind", "reason"), [("cholesky", "no operation Cholesky"), ("random", "differ by up to")])
def test_a_model_that_cannot_run_is_refused_with_the_operation_and_the_engine_that_works(tmp_path, kind, reason):
    import tensorflow as tf

    calls = {
        "cholesky": lambda values: values + tf.linalg.cholesky(tf.eye(3) * (1 + tf.reduce_sum(values)))[:1],
        "random": lambda values: values + tf.random.uniform(tf.shape(values)),
    }
    model = layered(calls[kind])
    checkpoint = save(model, tmp_path, task=LOGITS)
    with pytest.raises(ModelMismatchError, match=f"{reason}.*model's own framework runs it"):
        convert_model(checkpoint, tmp_path, {"Layer": type(model.layers[-1])})


def test_a_worker_that_gives_other_outputs_than_keras_on_the_driver_refuses_the_model(tmp_path):
    checkpoint = save(colour_model(), tmp_path)
    convert_model(checkpoint, checkpoint.path)
    file = checkpoint.path / EXPECTED_FILE
    np.save(file, np.load(file) + 1e-3)
    with pytest.raises(ModelMismatchError, match=r"ONNX Runtime cannot run the model.* differ by up to 1\.0e-03"):
        compile_model(checkpoint, onnx_threads=1)
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(ModelMismatchError, match=r"ONNX Runtime cannot run the model"):
        compile_model(checkpoint, onnx_threads=1)


def test_each_call_refuses_an_unknown_engine_before_a_session_opens(checkpoint, tmp_path):
    write_table(tmp_path / "table", [row(0)])
    for call in (lakelens.score, lakelens.evaluate, lakelens.predict_udf):
        table = () if call is lakelens.predict_udf else (tmp_path / "table",)
        with pytest.raises(InvalidArgumentError, match="engine='openvino': give 'onnxruntime'"):
            call(None, checkpoint.path, *table, engine="openvino")


def test_a_pytorch_model_is_refused_with_the_engine_that_works(tmp_path):
    model = resolve_model(save(colour_model(), tmp_path, backend="torch").path)
    with pytest.raises(ModelMismatchError, match=r"backend is 'torch', 'keras' is needed.*own framework runs it"):
        check_engine("score", "onnxruntime", model)
