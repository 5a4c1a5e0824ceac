"""Rules of the MLflow model that is made of a checkpoint, for models that are not plain."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lakelens.training.checkpoints.checkpoint import save_checkpoint
from lakelens.training.record.keras_model import keras_model
from lakelens.training.record.mlflow_model import write_mlflow_model

LAYERS = """
import keras

@keras.saving.register_keras_serializable(package="mine")
class Doubled(keras.layers.Layer):
    def call(self, inputs):
        return inputs * 2.0
"""


def images() -> Any:
    return np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3))


def moved_statistics(model: Any) -> Any:
    """Gives all weights values of their own, so that no two layers can be taken for each other."""
    rng = np.random.default_rng(1)
    model.set_weights([rng.uniform(0.1, 0.9, weight.shape).astype("float32") for weight in model.get_weights()])
    return model


def written(model: Any, folder: Path, code: dict[str, bytes] | None = None) -> Path:
    metadata = {"input": {"height": 8, "width": 8, "channels": 3}, "run_id": "r"}
    checkpoint = save_checkpoint(model, folder / "checkpoints", metadata=metadata)
    return write_mlflow_model(checkpoint, folder / "model", run_id="r", code=code).path


def prepared(model: Any, folder: Path) -> tuple[bool | None, Any]:
    """Whether the prepared model's values are probabilities, and the model, loaded again."""
    import keras

    (folder / "prepared").mkdir()
    model.save(folder / "a.keras")
    made = keras_model(folder / "a.keras", folder / "prepared", {}, makes_probabilities=True)
    return made.probabilities, keras.saving.load_model(folder / "prepared" / "data" / "model.keras")


@pytest.mark.tensorflow
def test_layers_over_ranks_become_layers_of_keras_with_their_weights(tmp_path):
    import keras
    import mlflow

    from lakelens.training.distributed.sync_batch_norm import SyncBatchNormalization

    inputs = keras.Input((8, 8, 3), dtype="uint8")
    inner = keras.Sequential([keras.Input((8, 8, 4)), SyncBatchNormalization(), keras.layers.BatchNormalization()])
    x = keras.layers.Rescaling(1 / 255)(inputs)
    x = keras.layers.Conv2D(4, 3, padding="same")(SyncBatchNormalization()(keras.layers.BatchNormalization()(x)))
    x = keras.layers.GlobalAveragePooling2D()(inner(x))
    model = moved_statistics(keras.Model(inputs, keras.layers.Dense(3)(x)))
    model.compile("adam", "mse")
    path = written(model, tmp_path)
    loaded = mlflow.keras.load_model(str(path))
    kinds = {type(layer).__module__.split(".")[0] for layer in loaded._flatten_layers()}
    assert kinds == {"keras"}
    pixels = images().astype("uint8")
    wanted = keras.ops.softmax(model(pixels))
    np.testing.assert_allclose(mlflow.pyfunc.load_model(str(path)).predict(pixels), wanted, atol=1e-6)


@pytest.fixture
def doubled(tmp_path, monkeypatch):
    """A model with a layer of the user, written in a process that then has never heard of it; and its values."""
    import keras

    (tmp_path / "my_doubled.py").write_text(LAYERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    import my_doubled

    layers = [keras.Input((8, 8, 3)), my_doubled.Doubled(), keras.layers.Flatten(), keras.layers.Dense(1)]
    model = moved_statistics(keras.Sequential(layers))
    pixels = images().astype("float32") / 1e4
    wanted = np.asarray(keras.ops.sigmoid(model(pixels)))
    path = written(model, tmp_path, {"my_doubled.py": LAYERS.encode()})
    kind = my_doubled.Doubled
    monkeypatch.undo()
    (tmp_path / "my_doubled.py").unlink()
    forget(kind)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield SimpleNamespace(path=str(path), pixels=pixels, wanted=wanted, kind=kind)
    forget(kind)


def forget(kind: type) -> None:
    import keras

    sys.modules.pop("my_doubled", None)
    keras.saving.get_custom_objects().pop("mine>Doubled", None)


@pytest.mark.tensorflow
def test_layers_of_the_user_come_along_and_mlflows_keras_flavor_takes_them_by_name(doubled):
    import mlflow

    required = Path(doubled.path, "requirements.txt").read_text().splitlines()
    assert {line.partition("==")[0] for line in required} >= {"mlflow", "keras", "numpy"}
    assert {line.partition("==")[0] for line in required}.isdisjoint({"lakelens", "petastorm", "horovod"})
    with pytest.raises(TypeError, match="Could not locate class 'Doubled'"):
        mlflow.keras.load_model(doubled.path)
    named = mlflow.keras.load_model(doubled.path, custom_objects={"mine>Doubled": doubled.kind})
    np.testing.assert_allclose(named(doubled.pixels), doubled.wanted, atol=1e-6)
    loaded = mlflow.pyfunc.load_model(doubled.path)
    np.testing.assert_allclose(loaded.predict(doubled.pixels), doubled.wanted, atol=1e-6)
    # What is registered in this process by now is known to MLflow's Keras flavor too, which adds no code.
    np.testing.assert_allclose(mlflow.keras.load_model(doubled.path)(doubled.pixels), doubled.wanted, atol=1e-6)


@pytest.mark.spark
def test_a_spark_udf_of_mlflow_brings_the_layers_of_the_user_to_its_workers(doubled, spark):
    import mlflow

    udf = mlflow.pyfunc.spark_udf(spark, doubled.path, env_manager="local")
    rows = [(image.ravel().tolist(),) for image in doubled.pixels]
    frame = spark.createDataFrame(rows, "pixels array<float>").coalesce(1)
    scored = [row[0] for row in frame.select(udf("pixels")).collect()]
    np.testing.assert_allclose(scored, doubled.wanted, atol=1e-6)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("head", "units", "added", "are_probabilities"),
    [
        ("linear", 1, "sigmoid", True),
        ("linear", 3, "softmax", True),
        ("softmax", 3, "linear", True),
        ("sigmoid", 1, "linear", True),
        ("relu", 3, "linear", None),  # layers that do not tell
    ],
)
def test_values_below_the_linear_activation_of_mixed_precision_become_probabilities_once(
    tmp_path, head, units, added, are_probabilities
):
    import keras

    layers = [keras.Input((8, 8, 3)), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(units, head)]
    model = keras.Sequential([*layers, keras.layers.Activation("linear", dtype="float32")])
    probabilities, loaded = prepared(model, tmp_path)
    assert probabilities == are_probabilities
    np.testing.assert_allclose(loaded(images()), keras.activations.get(added)(model(images())), atol=1e-6)
