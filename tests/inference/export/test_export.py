"""Rules of exports: they predict what `score` predicts, in processes that do not have lakelens."""

from __future__ import annotations

import base64
import io
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from child_processes import ending_with_this_process, kill_family
from colours import NAMES, SIDE, colour_model, image_of, layered, save
from PIL import Image

from lakelens.errors import InvalidArgumentError, ModelMismatchError
from lakelens.inference.export.export import export_model
from lakelens.inference.model.compiled import compile_model
from lakelens.inference.model.onnx_engine import check_images
from lakelens.inference.model.predictor import build_predictor
from lakelens.inference.model.user_code import UserCode
from lakelens.jobs.demo import DIGIT_NAMES, write_digits
from lakelens.training.tasks.classification import Classification
from lakelens.training.trials.context import TrialContext
from lakelens.training.trials.small_cnn import SmallCnn

pytestmark = pytest.mark.tensorflow

# Smooth images, as photographs are, of the model's size and of another; in PNG, which every decoder reads alike.
IMAGES = [image_of(name, side=side, form="PNG") for side in (SIDE, 40) for name in NAMES]


# Predicts with each export in a process that cannot import lakelens; TensorFlow comes only after the ONNX file.
ELSEWHERE = """
import base64, json, sys
sys.modules["lakelens"] = None
from pathlib import Path
import numpy as np, onnxruntime
folder = Path(sys.argv[1])
session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
pixels = np.load(folder / "images.npy")
probabilities, prediction = session.run(["probabilities", "prediction"], {"images": pixels.astype(np.float32)})
names = json.loads(session.get_modelmeta().custom_metadata_map["lakelens.class_names"])
found = {"onnx": {"floats": probabilities.tolist(), "names": [names[one] for one in prediction]}}
assert "tensorflow" not in sys.modules
import mlflow, pandas as pd, tensorflow as tf
images = [base64.b64decode(text) for text in json.loads((folder / "images.json").read_text())]
for name in ("probabilities", "logits"):
    model = tf.saved_model.load(str(folder / name))
    given = model.signatures["serving_default"](image=tf.constant(images))
    of_floats = model.signatures["images"](images=tf.constant(pixels[:3].astype(np.float32)))
    found[name] = {
        "names": [name.decode() for name in given["predicted_name"].numpy()],
        "bytes": given["probabilities"].numpy().tolist(),
        "floats": of_floats["probabilities"].numpy().tolist(),
    }
given = mlflow.pyfunc.load_model(str(folder / "pyfunc")).predict(pd.DataFrame({"image": images}))
found["pyfunc"] = given.to_dict(orient="list")
print(json.dumps(found, default=float))
"""


def scored(checkpoint):
    return build_predictor(checkpoint, 1 << 20, 1, UserCode()).predict(IMAGES).answers


def write_images(folder):
    texts = [base64.b64encode(image).decode() for image in IMAGES]
    (folder / "images.json").write_text(json.dumps(texts))
    return texts


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Each model's checkpoint, and what its exports predict."""
    import keras

    folder, linear = tmp_path_factory.mktemp("exported"), colour_model()
    linear.layers[-1].activation = keras.activations.linear
    checkpoints = {"probabilities": save(colour_model(), folder / "a"), "logits": save(linear, folder / "b")}
    for name, one in checkpoints.items():
        export_model(one.path, folder / name)
    export_model(checkpoints["probabilities"].path, folder / "pyfunc", format="pyfunc")
    export_model(checkpoints["probabilities"].path, folder / "model.onnx", format="onnx")
    write_images(folder)
    stored = [np.asarray(Image.open(io.BytesIO(image))) for image in IMAGES[: len(NAMES)]]
    np.save(folder / "images.npy", np.concatenate([stored, check_images((SIDE, SIDE, 3))]))
    command = [sys.executable, "-c", ELSEWHERE, folder]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    return checkpoints, found, np.load(folder / "images.npy")


@pytest.mark.parametrize("kind", ["probabilities", "logits"])
def test_a_savedmodel_predicts_what_score_does_from_bytes_and_from_floats(exported, kind):
    checkpoints, found, _ = exported
    expected = scored(checkpoints[kind])
    assert np.ptp(expected, axis=0).max() > 0.1
    assert found[kind]["names"] == [*NAMES, *NAMES]
    assert np.abs(np.array(found[kind]["floats"]) - expected[:3]).max() <= 1e-5
    assert np.abs(np.array(found[kind]["bytes"]) - expected).max() <= 1e-3


@pytest.mark.long
def test_where_the_graph_resizes_it_gives_the_class_of_score_for_the_demos_held_out_digits(tmp_path):
    """Files of 96 pixels, as the demo writes them, and a model of 32."""
    import keras
    import tensorflow as tf

    side = 32
    digits = write_digits(tmp_path)
    files = sorted({*digits.source.rglob("*.jpg"), *digits.arrivals.rglob("*.jpg")} - set(digits.broken))
    labels = np.array([int(file.parent.name[:3]) - 1 for file in files])
    images = [file.read_bytes() for file in files]
    assert {Image.open(file).size for file in files[:50]} == {(96, 96)}
    held_out = np.arange(len(files)) % 5 == 0
    small = np.stack([np.asarray(Image.open(file).convert("RGB").resize((side, side))) for file in files])
    keras.utils.set_random_seed(1)
    context = TrialContext(task=Classification(DIGIT_NAMES), image_size=(side, side), epochs=4)
    model = SmallCnn(context).build_model()
    model.fit(small[~held_out], labels[~held_out], batch_size=64, epochs=4, verbose=0)
    metadata = {"height": side, "width": side, "channels": 3}
    checkpoint = save(model, tmp_path / "checkpoints", input=metadata, labels=dict(enumerate(DIGIT_NAMES)))
    exported = tf.saved_model.load(export_model(checkpoint.path, tmp_path / "model").path)
    given = [image for image, held in zip(images, held_out, strict=True) if held]
    found = exported.signatures["serving_default"](image=tf.constant(given))["prediction"].numpy()
    expected = build_predictor(checkpoint, 1 << 24, 1, UserCode()).predict(given).answers.argmax(axis=1)
    assert len(given) > 350
    assert (expected == labels[held_out]).mean() > 0.9
    assert (found == expected).mean() >= 0.995


def test_a_pyfunc_predicts_without_lakelens(exported):
    checkpoints, found, _ = exported
    assert found["pyfunc"]["predicted_name"] == [*NAMES, *NAMES]
    assert np.abs(np.array(found["pyfunc"]["probabilities"]) - scored(checkpoints["probabilities"])).max() <= 1e-3


def test_an_onnx_file_predicts_what_score_does_from_floats(exported):
    checkpoints, found, pixels = exported
    expected = compile_model(checkpoints["probabilities"]).function(pixels)
    assert np.ptp(expected, axis=0).max() > 0.1
    assert np.abs(np.array(found["onnx"]["floats"]) - expected).max() <= 1e-5
    assert found["onnx"]["names"] == [NAMES[number] for number in expected.argmax(axis=1)]


def test_what_cannot_be_exported_is_refused_and_leaves_nothing(tmp_path):
    import keras

    @keras.saving.register_keras_serializable("tests")
    class Random(keras.layers.Layer):
        def call(self, values):
            return values * keras.random.uniform(keras.ops.shape(values))

    inputs = keras.Input((SIDE, SIDE, 3))
    model = keras.Model(inputs, Random()(colour_model()(inputs)))
    checkpoint = save(model, tmp_path / "random")
    with pytest.raises(ModelMismatchError, match="gives other probabilities"):
        export_model(checkpoint.path, tmp_path / "out", custom_objects={"Random": Random})
    other = save(colour_model(), tmp_path / "other")
    with pytest.raises(InvalidArgumentError, match="savedmodel, pyfunc, onnx"):
        export_model(other.path, tmp_path / "out", format="coreml")
    for wrong in ({"backend": "torch"}, {"task": {"name": "detection"}}):
        refused = save(colour_model(), tmp_path / "other", **wrong)
        with pytest.raises(ModelMismatchError, match="task 'classification' and the backend 'keras'"):
            export_model(refused.path, tmp_path / "out")
    (tmp_path / "there").mkdir()
    with pytest.raises(InvalidArgumentError, match="exists"):
        export_model(other.path, tmp_path / "there")
    assert {path.name for path in tmp_path.iterdir()} == {"random", "other", "there"}


def test_whatever_stops_an_export_names_the_model_and_the_reason(tmp_path):
    import tensorflow as tf

    # A SavedModel holds only what the model tracks.
    half = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([0], [0.5]), 0.0)
    model = layered(lambda values: values * half.lookup(tf.constant(0)))
    checkpoint, layer = save(model, tmp_path / "outside"), type(model.layers[-1])
    with pytest.raises(ModelMismatchError, match=r"cannot be exported as savedmodel, .*untracked.* Choose ano"):
        export_model(checkpoint.path, tmp_path / "out", custom_objects={"Layer": layer})
    assert not (tmp_path / "out").exists()


WITHOUT_LAKELENS = "import sys\nsys.modules['lakelens'] = None\n"
IN_SPARK = """
import base64, json, sys
import mlflow
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
result = "predicted_name string, probabilities array<float>"
predict = mlflow.pyfunc.spark_udf(spark, sys.argv[1], result_type=result, env_manager="local")
images = [(bytearray(base64.b64decode(text)),) for text in json.load(open(sys.argv[2]))]
found = spark.createDataFrame(images, "image binary").coalesce(1).select(predict("image").alias("p")).select("p.*")
print(json.dumps(found.toPandas().to_dict(orient="records"), default=list))
spark.stop()
"""


def answer_of(server, port, body, log):
    """Asks the server as soon as it listens."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/invocations", body, {"Content-Type": "application/json"})
    while server.poll() is None:
        try:
            with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310  the address is above
                return json.load(response)["predictions"]
        except urllib.error.HTTPError as error:
            pytest.fail(error.read().decode())
        except (ConnectionError, urllib.error.URLError):
            time.sleep(0.2)
    pytest.fail(log.read_text())


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_pyfunc_predicts_in_mlflows_server_and_in_its_spark_udf(tmp_path):
    checkpoint = save(colour_model(), tmp_path / "checkpoints")
    exported = export_model(checkpoint.path, tmp_path / "model", format="pyfunc").path
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_LAKELENS)
    texts = write_images(tmp_path)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # MLflow starts uvicorn by its name
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(tmp_path), "PYSPARK_PYTHON": sys.executable}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place, log = {"env": environment, "cwd": tmp_path}, tmp_path / "server.log"
    serve = ["mlflow", "models", "serve", "-m", exported, "-p", str(port), "--env-manager", "local"]
    with log.open("wb") as output:
        command = ending_with_this_process([sys.executable, "-m", *serve])
        server = subprocess.Popen(command, stdout=output, stderr=output, **place)
    try:
        command = [sys.executable, "-c", IN_SPARK, exported, str(tmp_path / "images.json")]
        spark = subprocess.run(command, capture_output=True, text=True, check=False, **place)
        body = {"dataframe_split": {"columns": ["image"], "data": [[text] for text in texts]}}
        served = answer_of(server, port, json.dumps(body).encode(), log)
    finally:
        kill_family(server)
    assert spark.returncode == 0, spark.stderr[-2000:]
    expected = scored(checkpoint)
    for found in (served, json.loads(spark.stdout.splitlines()[-1])):
        assert [one["predicted_name"] for one in found] == [*NAMES, *NAMES]
        assert np.abs(np.array([one["probabilities"] for one in found]) - expected).max() <= 1e-3
