"""What is saved and what is refused at loading; real Keras models, real malicious archives."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from volumes import make_volume

from lakelens.errors import CheckpointError
from lakelens.training.checkpoints.checkpoint import copy_checkpoint, open_checkpoint, save_checkpoint
from lakelens.training.checkpoints.keras_files import check_keras_file, load_keras_file

pytestmark = pytest.mark.tensorflow

SYNC = "SyncBatchNormalization"
METADATA = {"input": {"height": 4, "width": 4, "channels": 3}}


def small_model(*more: object) -> object:
    import keras

    model = keras.Sequential(
        [
            keras.Input((4, 4, 3)),
            keras.layers.Rescaling(1 / 255),
            *more,
            keras.layers.Flatten(),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(optimizer="nadam", loss="sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    return model


def rewritten(path: Path, **members: bytes) -> Path:
    """Copies a .keras archive with some members replaced, as an attacker would."""
    changed = path.with_name("changed.keras")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(changed, "w") as target:
        for name in source.namelist():
            target.writestr(name, members.get(name.split(".")[0], source.read(name)))
    return changed


def test_a_model_in_a_volume_predicts_the_same_and_the_optimizers_state_travels_with_it(tmp_path, monkeypatch):
    make_volume(tmp_path, monkeypatch)
    model, arrays = small_model(), {"order": np.arange(5), "seed": np.zeros(3, "uint8")}
    images = np.random.default_rng(0).uniform(0, 255, (6, 4, 4, 3)).astype("float32")
    model.fit(images, np.arange(6) % 3, verbose=0)
    saved = save_checkpoint(model, tmp_path / "run", metadata=METADATA, state={"epoch": 1}, arrays=arrays)
    copied = open_checkpoint(copy_checkpoint(saved, tmp_path / "another").path)
    assert copied.digest == saved.digest
    np.testing.assert_array_equal(copied.arrays()["order"], arrays["order"])
    loaded, compiled = copied.load_model(), copied.load_model(compile=True)
    np.testing.assert_array_equal(loaded.predict(images, verbose=0), model.predict(images, verbose=0))
    assert not loaded.compiled
    for mine, theirs in zip(model.optimizer.variables, compiled.optimizer.variables, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


def test_a_lambda_layer_is_refused_at_saving_and_at_loading_and_never_runs(tmp_path):
    import keras

    marker = tmp_path / "executed"
    code = f"__import__('pathlib').Path({str(marker)!r}).touch()"
    model = small_model(keras.layers.Lambda(eval(f"lambda x: [x, {code}][0]"), output_shape=(4, 4, 3)))  # noqa: S307
    marker.unlink(missing_ok=True)
    with pytest.raises(CheckpointError, match="'Lambda', which runs code"):
        save_checkpoint(model, tmp_path / "checkpoints", metadata=METADATA)
    assert list((tmp_path / "checkpoints").iterdir()) == []
    model.save(tmp_path / "model.keras")
    with pytest.raises(CheckpointError, match="'Lambda', which runs code"):
        load_keras_file(tmp_path / "model.keras", compile=False)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"module": "os", "class_name": "system", "config": {}, "registered_name": "system"}, "not part of Keras"),
        ({"module": "builtins_evil", "class_name": "function", "config": "eval"}, "not part of Keras"),
        ({"module": "kerasevil.layers", "class_name": "Dense", "config": {}}, "not part of Keras"),
        ({"module": None, "class_name": "Mine", "config": {}, "registered_name": "user>Mine"}, "custom_objects"),
        ({"module": "keras.layers", "class_name": "TFSMLayer", "config": {}}, "runs code"),
        # Another package's layer, and another object, under the name of a layer of ours.
        ({"module": None, "class_name": SYNC, "config": {}, "registered_name": f"others>{SYNC}"}, f"others>{SYNC}"),
        (
            {"module": "os", "class_name": "function", "config": "system", "registered_name": f"lakelens>{SYNC}"},
            "of module 'os', which is not part of Keras",
        ),
        ({"class_name": "__lambda__", "config": {"value": ["", None, None]}}, "runs code"),
    ],
)
def test_an_object_hidden_deep_in_the_architecture_is_refused(tmp_path, entry, words):
    small_model().save(tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as archive:
        config = json.loads(archive.read("config.json"))
    config["config"]["layers"][1]["config"]["extra"] = [{"deeper": [entry]}]
    path = rewritten(tmp_path / "model.keras", config=json.dumps(config).encode())
    with pytest.raises(CheckpointError, match=words):
        check_keras_file(path)


class Bomb:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


def test_what_is_no_archive_of_keras_is_refused_and_never_runs(tmp_path):
    path, marker = tmp_path / "model.keras", tmp_path / "executed"
    path.write_bytes(pickle.dumps(Bomb(marker)))
    with pytest.raises(CheckpointError, match=r"not a \.keras archive"):
        load_keras_file(path, compile=False)
    assert not marker.exists()
    small_model().save(tmp_path / "model.h5")
    (tmp_path / "model.h5").rename(path)
    with pytest.raises(CheckpointError, match=r"not a \.keras archive"):
        load_keras_file(path, compile=False)
    for name, content, words in (
        ("readme", "", "without config"),
        ("config.json", "not json", "not valid JSON"),
        ("config.json", "[" * 100_000, "not valid JSON"),
    ):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, content)
        with pytest.raises(CheckpointError, match=words):
            check_keras_file(path)


def test_weights_that_do_not_fit_the_architecture_are_a_checkpoint_error(tmp_path):
    small_model().save(tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as archive:
        config = json.loads(archive.read("config.json"))
    dense = next(layer for layer in config["config"]["layers"] if layer["class_name"] == "Dense")
    dense["config"]["units"] = 7
    path = rewritten(tmp_path / "model.keras", config=json.dumps(config).encode())
    with pytest.raises(CheckpointError, match="cannot be loaded as a Keras model"):
        load_keras_file(path, compile=False)


def test_a_layer_of_the_users_own_needs_the_users_word(tmp_path):
    import keras

    class Doubling(keras.layers.Layer):
        def call(self, inputs):
            return inputs * 2.0

    model = small_model(Doubling())
    saved = save_checkpoint(model, tmp_path, metadata=METADATA)
    with pytest.raises(CheckpointError, match="custom_objects"):
        saved.load_model()
    images = np.ones((1, 4, 4, 3), "float32")
    loaded = saved.load_model(custom_objects={"Doubling": Doubling})
    np.testing.assert_array_equal(loaded(images), model(images))
