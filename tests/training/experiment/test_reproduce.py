"""Rules of reproducing a run from its record: what was trained is trained again, and the results are compared."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from coloured_tables import add_rows, coloured_table
from mlflow_stores import put_store

from lakelens.errors import InvalidArgumentError
from lakelens.jobs.cli import main
from lakelens.tracking.runs import open_client, tracked_run
from lakelens.training.experiment.comparison import changed_packages
from lakelens.training.experiment.reproduce import reproduce
from lakelens.training.experiment.train import train

# What the promise of bit-equal results names.
EXACT = {"TF_DETERMINISTIC_OPS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}

TRIAL = """
    import keras
    from lakelens.training.trials.keras_trial import KerasTrial
    from {place}layers import head

    class Small(KerasTrial):
        def build_model(self):
            model = keras.Sequential([
                keras.Input((*self.context.image_size, 3)),
                keras.layers.Conv2D(4, 3, activation="relu"),
                keras.layers.GlobalAveragePooling2D(),
                keras.layers.Dropout(0.3, seed=self.context.seed),
                head(self.context.num_classes),
            ])
            model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
            return model
"""
HEAD = """
    import keras

    def head(classes):
        return keras.layers.Dense(classes, activation="softmax")
"""
# Draws what no seed determines.
DRAWN_HEAD = """
    import os
    import keras

    def head(classes):
        drawn = keras.initializers.RandomUniform(0, 1, seed=int.from_bytes(os.urandom(4), "big"))
        return keras.layers.Dense(classes, activation="softmax", bias_initializer=drawn)
"""


def write_code(folder: Path, place: str, head: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "small.py").write_text(textwrap.dedent(TRIAL).format(place=place))
    (folder / "layers.py").write_text(textwrap.dedent(head))
    return folder


def keys(folder: Path, entrypoint: str) -> dict[str, Any]:
    return {
        "name": "small",
        "entrypoint": entrypoint,
        "data": {"table": "squares"},
        "hyperparameters": {"global_batch_size": 16},
        "searcher": {"max_length": {"epochs": 2}},
        "resources": {"env": EXACT},
        "checkpoint_storage": {"path": "checkpoints"},
        "tracking": {"uri": put_store(folder)},
    }


def result_of(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.tensorflow
def test_a_run_is_reproduced_to_the_bit_from_its_record_alone(tmp_path, monkeypatch, capsys):
    table = coloured_table(tmp_path / "squares")
    package = write_code(tmp_path / "mine", ".", HEAD)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.chdir(tmp_path)
    origin = train(keys(tmp_path, "mine.small:Small"))
    # Neither the code that is there now nor the table's latest version is what was trained.
    write_code(package, ".", HEAD.replace("softmax", "sigmoid"))
    add_rows(table, 500, 40, "train")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["reproduce", origin.run_id, "--tracking-uri", origin.tracking_uri]) == 0
    result = result_of(capsys)
    assert (result["origin"], result["equal"], result["differences"]) == (origin.run_id, True, [])
    assert result["environment"] == []
    client = open_client(origin.tracking_uri)
    again = client.get_run(result["run_id"])
    assert again.data.tags["lakelens.reproduces"] == origin.run_id
    assert again.data.tags["lakelens.version"] == "0"
    assert again.data.tags["lakelens.entrypoint"] == "mine.small:Small"
    assert again.info.run_name == "small, again"
    code = Path(client.download_artifacts(result["run_id"], "code"))
    assert "softmax" in (code / "mine" / "layers.py").read_text()
    assert (tmp_path / "checkpoints" / result["run_id"]).is_dir()


@pytest.mark.tensorflow
def test_a_run_that_cannot_be_reproduced_to_the_bit_says_where_it_differs(tmp_path, monkeypatch, capsys):
    coloured_table(tmp_path / "squares")
    code = write_code(tmp_path / "code", "", DRAWN_HEAD)
    monkeypatch.chdir(tmp_path)
    origin = train(keys(tmp_path, f"{code / 'small.py'}:Small"))
    (code / "small.py").unlink()
    (code / "layers.py").unlink()
    arguments = ["reproduce", origin.run_id, "--tracking-uri", origin.tracking_uri]
    assert main([*arguments, "--checkpoint-dir", str(tmp_path / "others")]) == 1
    result = result_of(capsys)
    assert result["equal"] is False
    assert any(line.startswith("val_loss at 1: ") for line in result["differences"])
    assert any(line.startswith("weight layers/dense/vars/") for line in result["differences"])
    assert [path.name for path in (tmp_path / "others").iterdir()] == [result["run_id"]]


@pytest.mark.unit
def test_only_a_finished_run_is_reproduced(tmp_path):
    uri = put_store(tmp_path)
    with pytest.raises(RuntimeError, match="mine"), tracked_run(uri, "lakelens") as run:
        raise RuntimeError("mine")
    with pytest.raises(InvalidArgumentError, match=rf"run {run.run_id} is FAILED; only a finished run"):
        reproduce(run.run_id, tracking_uri=uri)


@pytest.mark.unit
def test_packages_that_have_changed_are_named():
    then = ["numpy==1.26.4", "mine @ file:///a", "gone==1", "keras==3.11.3"]
    now = ["numpy==1.26.5", "mine @ file:///a", "keras==3.11.3", "new==2"]
    assert changed_packages(then, now) == ["gone==1 then, not installed now", "numpy==1.26.4 then, numpy==1.26.5 now"]


@pytest.mark.unit
def test_the_schema_is_printed_as_json(capsys):
    assert main(["schema"]) == 0
    schema = result_of(capsys)
    assert schema["additionalProperties"] is False
    assert "data" in schema["required"]
