"""What `lakelens train --dry-run` finds before anything is trained or written, with real processes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from mlflow_stores import put_store
from tiny_trial import tiny_trial

from lakelens.jobs.cli import main
from lakelens.liveness import Process
from lakelens.tracking.heartbeat import HEARTBEAT_TAG, Heartbeat
from lakelens.tracking.runs import open_client

TRIALS = """
    class OtherLabels(Tiny):
        def build_model(self):
            model = super().build_model()
            model.compile("sgd", "categorical_crossentropy")
            return model

    class Own(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="own")
            self.last = self.add_variable((), "zeros", name="last", aggregation="none")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.last.assign(keras.ops.mean(y_pred))

        def result(self):
            return self.last

    class ForOneRank(Tiny):
        def build_model(self):
            model = super().build_model()
            model.compile("sgd", "sparse_categorical_crossentropy", metrics=[Own()])
            return model
"""


@pytest.fixture
def experiment(table: Path, tmp_path: Path) -> Path:
    keys = {
        "entrypoint": tiny_trial(tmp_path, more=TRIALS),
        "data": {"table": str(table), "cache": str(tmp_path / "cache")},
        "hyperparameters": {"learning_rate": 0.1, "global_batch_size": 16},
        "checkpoint_storage": {"path": str(tmp_path / "checkpoints")},
        "tracking": {"uri": put_store(tmp_path)},
    }
    (tmp_path / "experiment.yaml").write_text(json.dumps(keys))
    return tmp_path / "experiment.yaml"


def written(folder: Path) -> dict[str, bytes | None]:
    """All files of a folder with their bytes."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


@pytest.mark.tensorflow
def test_a_dry_run_builds_the_model_in_a_process_of_its_own_and_writes_nothing(experiment, capsys):
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
        ({"entrypoint": "broken.py:Tiny"}, 2, "was never closed; the Trial cannot be imported"),
        ({"searcher.metric": "val_recall"}, 2, "metric 'val_recall'"),
        ({"checkpoint_storage.path": "/proc/version/checkpoints"}, 1, "/proc/version/checkpoints cannot be written"),
        ({"tracking.uri": "sqlite:////proc/1/mlflow.db"}, 2, "MLflow's store would be /proc/1/mlflow.db"),
        ({"warm_start": "runs:/nothing"}, 2, "the tracking store has no run 'nothing'"),
    ],
)
def test_a_dry_run_finds_what_a_training_finds_before_its_first_step(changes, code, words, experiment, capsys):
    if "entrypoint" in changes:
        (experiment.parent / "broken.py").write_text("class Tiny(\n")
        file, _, name = changes["entrypoint"].rpartition(":")
        changes["entrypoint"] = f"{experiment.parent}/{file or 'tiny.py'}:{name}"
    flags = [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]
    assert main(["train", str(experiment), "--dry-run", *flags]) == code
    assert words in capsys.readouterr().err


@pytest.mark.tensorflow
def test_a_dry_run_checks_what_only_several_ranks_refuse(experiment, capsys):
    flags = ["--entrypoint", f"{experiment.parent}/tiny.py:ForOneRank", "--dry-run"]
    assert main(["train", str(experiment), *flags]) == 0
    assert main(["train", str(experiment), *flags, "--slots-per-trial", "2", "--strategy", "horovod_local"]) == 2
    assert "metric 'own' (Own) keeps 'last' with aggregation 'none'" in capsys.readouterr().err


@pytest.mark.tensorflow
def test_a_dry_run_marks_no_lost_run(experiment, capsys):
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
def test_a_dry_run_that_may_not_import_runs_no_code_of_the_user(experiment, capsys):
    trial = experiment.parent / "tiny.py"
    trial.write_text(f"open({str(trial) + '.ran'!r}, 'w')\nclass Tiny: pass\n")
    assert main(["train", str(experiment), "--dry-run", "--no-import"]) == 0
    assert json.loads(capsys.readouterr().out)["imported"] is False
    assert not Path(f"{trial}.ran").exists()
    assert main(["train", str(experiment), "--no-import"]) == 2
    assert "--no-import is for --dry-run" in capsys.readouterr().err
