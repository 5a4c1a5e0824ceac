"""Rules of the MLflow model that is made of a checkpoint, for models that are not plain."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lakelens.tracking.logged_models import write_description
from lakelens.training.checkpoints.checkpoint import save_checkpoint
from lakelens.training.record.inference_archive import write_inference_archive
from lakelens.training.record.mlflow_model import write_mlflow_model

pytestmark = pytest.mark.tensorflow
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
    made = write_mlflow_model(checkpoint, folder / "model", run_id="r", code=code)
    write_description(made.path, made.description)
    return made.path


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


def test_layers_of_the_user_come_along_and_are_registered(tmp_path, monkeypatch):
    import keras
    import mlflow

    (tmp_path / "my_doubled.py").write_text(LAYERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    import my_doubled

    layers = [keras.Input((8, 8, 3)), my_doubled.Doubled(), keras.layers.Flatten(), keras.layers.Dense(1)]
    model = moved_statistics(keras.Sequential(layers))
    pixels = images().astype("float32") / 1e4
    wanted = keras.ops.sigmoid(model(pixels))
    path = written(model, tmp_path, {"my_doubled.py": LAYERS.encode()})
    # As in a process that has never heard of the layer.
    monkeypatch.undo()
    (tmp_path / "my_doubled.py").unlink()
    del sys.modules["my_doubled"]
    keras.saving.get_custom_objects().pop("mine>Doubled")
    monkeypatch.setattr(sys, "path", list(sys.path))
    np.testing.assert_allclose(mlflow.pyfunc.load_model(str(path)).predict(pixels), wanted, atol=1e-6)


def test_a_model_whose_layers_do_not_tell_is_left_as_it_is(tmp_path):
    import keras

    layers = [keras.Input((8, 8, 3)), keras.layers.GlobalAveragePooling2D(), keras.layers.ReLU()]
    model = keras.Sequential(layers)
    model.save(tmp_path / "a.keras")
    archive = write_inference_archive(tmp_path / "a.keras", tmp_path / "b.keras")
    assert archive.probabilities is None
    np.testing.assert_allclose(keras.saving.load_model(tmp_path / "b.keras")(images()), model(images()))
