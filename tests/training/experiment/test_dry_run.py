"""What `lakelens train --dry-run` finds before anything is trained or written, with real processes."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from coloured_tables import coloured_table
from mlflow_stores import put_store

from lakelens.jobs.cli import main
from lakelens.liveness import Process
from lakelens.tracking.heartbeat import HEARTBEAT_TAG, Heartbeat
from lakelens.tracking.runs import open_client

TRIALS = """
    import keras
    import lakelens

    class Good(lakelens.KerasTrial):
        loss = "sparse_categorical_crossentropy"

        def build_model(self):
            rate = self.context.get_hparam("learning_rate")
            inputs = keras.Input((16, 16, 3))
            pooled = keras.layers.GlobalAveragePooling2D()(inputs)
            model = keras.Model(inputs, keras.layers.Dense(3, activation="softmax")(pooled))
            model.compile(keras.optimizers.SGD(rate), self.loss)
            return model

    class OtherLabels(Good):
        loss = "categorical_crossentropy"


    class Own(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="own")
            self.last = self.add_variable((), "zeros", name="last", aggregation="none")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.last.assign(keras.ops.mean(y_pred))

        def result(self):
            return self.last

    class ForOneRank(Good):
        def build_model(self):
            model = super().build_model()
            model.compile("sgd", self.loss, metrics=[Own()])
            return model
"""


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return coloured_table(tmp_path_factory.mktemp("data") / "squares")


@pytest.fixture
def experiment(table: Path, tmp_path: Path) -> Path:
    (tmp_path / "trials.py").write_text(textwrap.dedent(TRIALS))
    put_store(tmp_path)
    keys = {
        "entrypoint": f"{tmp_path}/trials.py:Good",
        "data": {"table": str(table), "cache": str(tmp_path / "cache")},
        "hyperparameters": {"learning_rate": 0.1, "global_batch_size": 16},
        "checkpoint_storage": {"path": str(tmp_path / "checkpoints")},
        "tracking": {"uri": f"sqlite:///{tmp_path}/mlflow.db"},
    }
    (tmp_path / "experiment.yaml").write_text(json.dumps(keys))
    return tmp_path / "experiment.yaml"


def written(folder: Path) -> dict[str, bytes | None]:
    """All files of a folder with their bytes."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


@pytest.mark.tensorflow
def test_a_dry_run_builds_the_model_in_a_process_of_its_own_and_writes_nothing(
    experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, known = written(experiment.parent), set(sys.modules)
    assert main(["train", str(experiment), "--dry-run"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["dry_run"], plan["imported"], plan["rows"]) == (True, True, {"train": 90, "validation": 21})
    assert written(experiment.parent) == before
    assert not {name for name in set(sys.modules) - known if name.startswith("lakelens_trial_")}


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"entrypoint": "OtherLabels"}, 1, "target.shape=(None,)"),
        ({"entrypoint": "broken.py:Good"}, 2, "was never closed; the Trial cannot be imported"),
        ({"searcher.metric": "val_recall"}, 2, "metric 'val_recall'"),
        ({"checkpoint_storage.path": "/proc/version/checkpoints"}, 1, "/proc/version/checkpoints cannot be written"),
        ({"tracking.uri": "sqlite:////proc/1/mlflow.db"}, 2, "MLflow's store would be /proc/1/mlflow.db"),
        ({"warm_start": "runs:/nothing"}, 2, "the tracking store has no run 'nothing'"),
    ],
)
def test_a_dry_run_finds_what_a_training_finds_before_its_first_step(
    changes: dict[str, Any], code: int, words: str, experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "entrypoint" in changes:
        (experiment.parent / "broken.py").write_text("class Good(\n")
        file, _, name = changes["entrypoint"].rpartition(":")
        changes["entrypoint"] = f"{experiment.parent}/{file or 'trials.py'}:{name}"
    flags = [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]
    assert main(["train", str(experiment), "--dry-run", *flags]) == code
    assert words in capsys.readouterr().err


@pytest.mark.tensorflow
def test_a_dry_run_checks_what_only_several_ranks_refuse(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--entrypoint", f"{experiment.parent}/trials.py:ForOneRank", "--dry-run"]
    assert main(["train", str(experiment), *flags]) == 0
    assert main(["train", str(experiment), *flags, "--slots-per-trial", "2", "--strategy", "horovod_local"]) == 2
    assert "metric 'own' (Own) keeps 'last' with aggregation 'none'" in capsys.readouterr().err


@pytest.mark.tensorflow
def test_a_dry_run_marks_no_lost_run(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`experiment:NAME` looks at finished runs; one whose driver was killed stays as it is."""
    client = open_client(f"sqlite:///{experiment.parent}/mlflow.db")
    run = client.create_run(
        client.create_experiment("earlier"), tags={HEARTBEAT_TAG: str(Heartbeat(Process.this(), 0.0))}
    )
    before = written(experiment.parent)
    assert main(["train", str(experiment), "--dry-run", "--set", "warm_start=experiment:earlier"]) == 2
    assert "no finished run" in capsys.readouterr().err
    assert client.get_run(run.info.run_id).info.status == "RUNNING"
    assert written(experiment.parent) == before


@pytest.mark.unit
def test_a_dry_run_that_may_not_import_runs_no_code_of_the_user(
    experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = experiment.parent / "trials.py"
    trial.write_text(f"open({str(trial) + '.ran'!r}, 'w')\nclass Good: pass\n")
    assert main(["train", str(experiment), "--dry-run", "--no-import"]) == 0
    assert json.loads(capsys.readouterr().out)["imported"] is False
    assert not Path(f"{trial}.ran").exists()
    assert main(["train", str(experiment), "--no-import"]) == 2
    assert "--no-import is for --dry-run" in capsys.readouterr().err
