"""Rules of reproducing a run from its record: what was trained is trained again, and the results are compared."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from coloured_tables import add_rows, coloured_table
from mlflow_stores import put_store
from segment_jobs import EXACT

from lakelens.errors import InvalidArgumentError
from lakelens.jobs.cli import main
from lakelens.tracking.runs import open_client, tracked_run
from lakelens.training.checkpoints.checkpoint import open_checkpoint, save_checkpoint
from lakelens.training.experiment.reproduce import _recorded_entrypoint, changed_packages, reproduce
from lakelens.training.experiment.train import train

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


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A run; neither the code that is there now nor the table's latest version is what was trained."""
    folder = tmp_path_factory.mktemp("origin")
    table = coloured_table(folder / "squares")
    package = write_code(folder / "mine", ".", HEAD)
    (package / "__init__.py").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", str(folder), prepend=":")
        patch.chdir(folder)
        result = train(keys(folder, "mine.small:Small"))
        write_code(package, ".", HEAD.replace("softmax", "sigmoid"))
        add_rows(table, 500, 40, "train")
        (folder / "elsewhere").mkdir()
        patch.chdir(folder / "elsewhere")
        yield SimpleNamespace(run_id=result.run_id, uri=result.tracking_uri, folder=folder)


def reproduce_again(origin: SimpleNamespace) -> tuple[int, dict[str, Any]]:
    """Exit code and result of `lakelens reproduce`, which trains once: a later call compares the same two runs."""
    arguments = ["--tracking-uri", origin.uri, "--checkpoint-dir", str(origin.folder / "others"), "--job", "again"]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = main(["reproduce", origin.run_id, *arguments])
    return code, json.loads(said.getvalue().splitlines()[-1])


@pytest.fixture(scope="module")
def reproduced(origin: SimpleNamespace) -> tuple[int, dict[str, Any]]:
    return reproduce_again(origin)


@pytest.mark.tensorflow
def test_a_run_is_reproduced_to_the_bit_from_its_record_alone(origin, reproduced):
    code, result = reproduced
    assert (code, result["origin"], result["equal"], result["differences"]) == (0, origin.run_id, True, [])
    assert result["environment"] == []
    client = open_client(origin.uri)
    again = client.get_run(result["run_id"])
    assert again.data.tags["lakelens.reproduces"] == origin.run_id
    assert again.data.tags["lakelens.version"] == "0"
    assert again.data.tags["lakelens.entrypoint"] == "mine.small:Small"
    assert again.info.run_name == "small, again"
    assert "softmax" in Path(client.download_artifacts(again.info.run_id, "code"), "mine", "layers.py").read_text()
    assert [path.name for path in (origin.folder / "others").iterdir() if path.is_dir()] == [again.info.run_id]


@pytest.mark.tensorflow
def test_a_run_that_cannot_be_reproduced_to_the_bit_says_where_it_differs(origin, reproduced, tmp_path):
    """The reproduced run gets another metric and other weights than the training gave."""
    client, run_id = open_client(origin.uri), reproduced[1]["run_id"]
    client.log_metric(run_id, "val_loss", 9.0, timestamp=2**42, step=1)
    kept = open_checkpoint(client.download_artifacts(run_id, "checkpoint"))
    model = kept.load_model(compile=True)
    model.layers[-1].bias.assign_add([0.0, 0.5, 0.0])
    other = save_checkpoint(model, tmp_path, metadata=kept.metadata, state=kept.state(), arrays=kept.arrays())
    client.log_artifacts(run_id, str(other.path), "checkpoint")
    code, result = reproduce_again(origin)
    assert (code, result["run_id"], result["equal"]) == (1, run_id, False)
    metric, weight = result["differences"]
    assert re.fullmatch(r"val_loss at 1: \d\.\d+ and 9\.0", metric)
    assert weight == "weight layers/dense/vars/1: by at most 0.5"
    assert "reproducibility: {deterministic: true}" in result["environment"][-1]


@pytest.mark.tensorflow
def test_an_entry_point_whose_files_are_gone_is_made_again_from_the_record(tmp_path, monkeypatch):
    uri, code = put_store(tmp_path), write_code(tmp_path / "code", "", HEAD)
    name = f"{code / 'small.py'}:Small"
    with tracked_run(uri, "lakelens") as run:
        for file in code.iterdir():
            open_client(uri).log_text(run.run_id, file.read_text(), f"code/{file.name}")
    shutil.rmtree(code)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with _recorded_entrypoint(uri, run.run_id, name) as entry:
        assert (entry.name, entry.load().__name__) == (name, "Small")
        assert sys.modules.pop("layers").__file__ == str(Path(entry.target).with_name("layers.py"))


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
