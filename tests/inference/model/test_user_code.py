"""Rules of models with the user's own classes, on a real two-executor Spark and with a real MLflow store."""

from __future__ import annotations

import importlib
import shutil
import sys
import textwrap

import pytest
from colours import mixed_model, mixer
from model_store import ROWS

import lakelens
from lakelens.errors import ModelMismatchError
from lakelens.inference.model.user_code import UserCode, user_code
from lakelens.inference.promotion import promote
from lakelens.tracking.runs import RunReference
from lakelens.training.checkpoints.keras_files import UserObject
from lakelens.training.checkpoints.references import resolve_model
from lakelens.training.record.code_record import record_code
from lakelens.training.trials.entrypoint import EntryPoint

TRIAL = """
    import keras
    import numpy as np
    from helpers.mixing import mixed
    from lakelens import KerasTrial

    class Mixer(keras.layers.Layer):
        def call(self, strengths):
            from helpers.shift import SHIFT  # the first time that it is called

            return mixed(strengths, SHIFT)

    class Mine(keras.Model):
        pass

    class Right(keras.metrics.Mean):
        pass

    def softer(truth, given):
        return keras.losses.sparse_categorical_crossentropy(truth, given) / 2

    class Photos(KerasTrial):
        def build_model(self):
            pixels = keras.Input((16, 16, 3))
            strengths = keras.layers.GlobalAveragePooling2D()(pixels)
            model = Mine(pixels, keras.layers.Softmax()(Mixer()(strengths)))
            model.compile("sgd", softer, metrics=[Right()])
            return model
"""
MIXING = """
    import keras

    def mixed(strengths, shift):
        return keras.ops.roll(strengths, shift, axis=-1)
"""


@pytest.mark.unit
def test_recorded_modules_win_and_the_installed_package_has_the_others(tmp_path, monkeypatch):
    package = tmp_path / "installed_trials"
    (package / "parts").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "layers.py").write_text("KIND = 'installed'\n")
    (package / "parts" / "table.py").write_text("ROWS = 3\n")  # too large for the record, or imported by name
    monkeypatch.syspath_prepend(tmp_path)
    text = "import importlib\nrows = importlib.import_module('installed_trials.parts.table').ROWS\n"
    recorded = {"__init__.py": "", "layers.py": f"KIND = 'recorded'\n{text}", "parts/other.py": ""}
    files = {f"installed_trials/{name}": content.encode() for name, content in recorded.items()}
    needed = tuple(UserObject(name, "installed_trials.layers", name) for name in ("KIND", "rows"))
    try:
        with UserCode(needed=needed, files=files).loaded() as found:
            assert found == {"KIND": "recorded", "rows": 3}
    finally:
        sys.modules.pop("installed_trials.parts.table", None)


def trained(store, folder, shift):
    """A run of a Trial whose files are gone; those of two runs have the same names."""
    files = {"photos.py": TRIAL, "helpers/mixing.py": MIXING, "helpers/shift.py": f"SHIFT = {shift}\n"}
    (folder / "helpers").mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(textwrap.dedent(text))
    entry = EntryPoint.parse(f"{folder / 'photos.py'}:Photos")
    try:
        run_id = store.run(entry.load()(None).build_model())
        record_code(RunReference(store.uri, store.experiment, run_id, "here"), entry)
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.startswith(("lakelens_trial_photos", "helpers"))]:
            del sys.modules[name]
        shutil.rmtree(folder)
    return run_id


@pytest.mark.spark
def test_a_model_with_classes_of_its_own_is_scored_evaluated_and_promoted_by_the_code_of_its_run(
    spark, store, tmp_path
):
    wrong, right = (trained(store, tmp_path / f"shift {shift}", shift) for shift in (1, 0))
    scored = lakelens.score(spark, f"runs:/{wrong}", store.table, tmp_path / "predictions", tracking_uri=store.uri)
    assert (scored.scored, scored.errors) == (ROWS, 0)
    assert promote(f"runs:/{wrong}", "mixers", tracking_uri=store.uri).promoted
    options = {"if_better": "accuracy", "on": f"{store.table}@0", "tracking_uri": store.uri}
    found = promote(f"runs:/{right}", "mixers", spark=spark, **options)
    assert (found.promoted, found.score, found.previous_score) == (True, 1.0, 0.0)
    udf = lakelens.predict_udf(spark, "models:/mixers@champion", tracking_uri=store.uri)
    rows = spark.read.format("delta").load(str(store.table)).select("label", udf("image").alias("given"))
    assert rows.where("given.prediction = label").count() == ROWS


@pytest.mark.tensorflow
def test_a_model_whose_classes_are_not_recorded_is_refused_before_spark_starts(store, tmp_path):
    run_id = store.run(mixed_model(mixer(1)))
    model, uri = f"runs:/{run_id}", {"tracking_uri": store.uri}

    def session():
        pytest.fail("Spark starts")

    for call in (
        lambda: lakelens.score(session, model, store.table, tmp_path, **uri),
        lambda: lakelens.evaluate(session, model, store.table, **uri),
        lambda: promote(model, "mixed", spark=session, if_better="ece", on=store.table, **uri),
    ):
        with pytest.raises(ModelMismatchError, match=r"needs 'Mixer' of module 'colours'.* does not define it"):
            call()
    (path,) = (store.folder / "kept" / run_id).iterdir()
    with pytest.raises(ModelMismatchError, match=r"the model is named by path, not by its run.*runs:/<run id>"):
        lakelens.score(session, path, store.table, tmp_path)


@pytest.mark.tensorflow
def test_a_class_of_an_installed_package_is_imported_if_its_run_was_trained_with_the_package(
    store, tmp_path, monkeypatch
):
    wing = """
        import keras

        @keras.saving.register_keras_serializable("birds")
        class Wing(keras.layers.Layer):
            def call(self, strengths):
                return strengths
    """
    files = {
        "site/bird_layers/__init__.py": wing,
        "site/bird_layers-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: Bird.Layers\nVersion: 1.0\n",
        "site/bird_layers-1.0.dist-info/top_level.txt": "bird_layers\n",
        "own/photos.py": "from bird_layers import Wing\nfrom lakelens import KerasTrial as Photos\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    with monkeypatch.context() as installed:
        installed.syspath_prepend(tmp_path / "site")
        layer = importlib.import_module("bird_layers").Wing
        run_id = store.run(mixed_model(layer))
        model = resolve_model(f"runs:/{run_id}", store.uri)
        with pytest.raises(ModelMismatchError, match="needs 'birds>Wing' of module 'bird_layers'"):
            user_code(model)  # nothing is recorded
        entry = EntryPoint.parse(f"{tmp_path / 'own' / 'photos.py'}:Photos")
        record_code(RunReference(store.uri, store.experiment, run_id, "here"), entry)
        with user_code(model).loaded() as objects:
            assert objects["birds>Wing"] is layer
    with pytest.raises(ModelMismatchError, match="or in a package that is installed here too"):
        user_code(model)
