"""Rules of the doors to a training: an experiment file, a dict, a config, and the command."""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from coloured_tables import add_rows, coloured_table
from mlflow_stores import put_store
from tiny_trial import tiny_trial
from tracked_runs import tracked

from lakelens.errors import ConfigurationError, InvalidArgumentError, TrainingPaused
from lakelens.jobs.cli import main
from lakelens.tracking.runs import open_client
from lakelens.training.checkpoints.checkpoint import list_checkpoints
from lakelens.training.configuration.experiment import ExperimentConfig
from lakelens.training.experiment.dry_run import plan_of
from lakelens.training.experiment.experiment_plan import ExperimentPlan
from lakelens.training.experiment.run_folder import resuming
from lakelens.training.experiment.strategies import Strategy
from lakelens.training.experiment.train import experiment_of, train

INTERRUPTED = """
    import os
    import signal
    import time
    from pathlib import Path

    from lakelens.training.rank import process_context

    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            once = Path(os.environ.get("ONCE", "/nowhere"))
            if str(int(self.model.optimizer.iterations)) == os.environ.get("INTERRUPT_AT") and not once.exists():
                once.touch()
                os.kill(int(os.environ["DRIVER"]), signal.SIGINT)
                while not process_context.told().get("pause"):
                    time.sleep(0.01)

    class Interrupted(Tiny):
        def keras_callbacks(self):
            assert self.context.get_hparam("global_batch_size") == 16
            return [Interrupt()]
"""


@pytest.fixture
def keys(table, tmp_path) -> dict[str, Any]:
    """An experiment of 15 steps with a validation after each 5; an epoch is 6."""
    return {
        "name": "tiny",
        "labels": ["test", "squares"],
        "description": "Learns colours.",
        "entrypoint": tiny_trial(tmp_path, "Interrupted", INTERRUPTED),
        "data": {"table": str(table)},
        "hyperparameters": {"learning_rate": {"type": "const", "val": 1e-4}, "global_batch_size": 16},
        "searcher": {"metric": "val_loss", "max_length": {"batches": 15}},
        "min_validation_period": {"batches": 5},
        "checkpoint_policy": "all",
        "checkpoint_storage": {"path": str(tmp_path / "checkpoints"), "save_trial_best": 1, "save_trial_latest": 2},
        "tracking": {"uri": f"sqlite:///{tmp_path}/mlflow.db", "register_as": "tiny"},
    }


def config_of(keys: dict[str, Any], **changes: Any) -> ExperimentConfig:
    return ExperimentConfig.read({**keys, **changes})


@pytest.mark.tensorflow
def test_an_experiment_file_trains_by_batches_and_keeps_and_registers_what_it_says(keys, tmp_path, capsys):
    put_store(tmp_path)
    file = tmp_path / "experiment.yaml"
    file.write_text(json.dumps(keys))  # JSON is YAML
    overrides = [
        "hyperparameters.learning_rate=0.001",
        "perform_initial_validation=true",
        "early_stopping={patience: 9, restore_best_weights: true}",
        "optimizations={gradient_compression: fp16, learning_rate_scaling: linear}",
    ]
    assert main(["train", str(file), *(part for each in overrides for part in ("--set", each))]) == 0
    said = capsys.readouterr().out
    assert "gradient_compression: no gradients are sent" in said
    assert "learning rate 0.001 = 0.001 x 1 (linear, 1 workers)" in said
    result = json.loads(said.splitlines()[-1])
    assert (result["epochs"], result["ranks"], result["version"]) == (3, 1, 0)
    kept = list_checkpoints(Path(result["checkpoint"]).parent)
    steps = [checkpoint.metadata["step"] for checkpoint in kept]
    assert steps[-2:] == [10, 15]
    assert {checkpoint.metadata["hyperparameters"]["learning_rate"] for checkpoint in kept} == {0.001}
    assert result["digest"] in {checkpoint.digest for checkpoint in kept}
    client = open_client(keys["tracking"]["uri"])
    history = client.get_metric_history(result["run_id"], "val_loss")
    assert [point.step for point in history] == [0, 5, 10, 15]
    run = client.get_run(result["run_id"])
    assert run.info.run_name == "tiny"
    assert run.data.tags["lakelens.labels"] == "test, squares"
    assert run.data.tags["mlflow.note.content"] == "Learns colours."
    assert client.get_model_version("tiny", "1").run_id == result["run_id"]


@pytest.mark.tensorflow
def test_an_interrupted_training_pauses_and_is_resumed_in_the_same_run_on_the_version_it_has_read(
    keys, tmp_path, capsys
):
    put_store(tmp_path)
    data = {"table": str(coloured_table(tmp_path / "grows"))}
    storage = keys["checkpoint_storage"] | {"save_trial_latest": 0}
    env = {"INTERRUPT_AT": "7", "DRIVER": str(os.getpid()), "ONCE": str(tmp_path / "once")}
    config = config_of(keys, data=data, resources={"env": env}, checkpoint_storage=storage)
    with pytest.raises(TrainingPaused, match=r"has paused after step 7 of 15; lakelens train --resume \w+ continues"):
        train(config)
    (folder,) = (tmp_path / "checkpoints").iterdir()
    client = open_client(keys["tracking"]["uri"])
    assert client.get_run(folder.name).info.status == "KILLED"
    before, paused = list_checkpoints(folder)
    assert (before.metadata["step"], paused.metadata["step"]) == (5, 7)
    assert folder.name in tracked(config.data.table)[0]  # a later resume reads this version
    add_rows(config.data.table, 500, 16, "train")
    paused.model_path.write_bytes(b"damaged")  # so it goes on from step 5, and what is recorded of step 6 stays
    resume = ["train", "--resume", folder.name, "--tracking-uri", keys["tracking"]["uri"]]
    with resuming(folder.parent, folder.name):  # as another process does
        assert main(resume) == 2
    assert f"run {folder.name} is being resumed by another process" in capsys.readouterr().err
    assert client.get_run(folder.name).info.status == "KILLED"
    assert main(resume) == 0
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["run_id"], result["version"], result["epochs"]) == (folder.name, 0, 3)
    run = client.get_run(folder.name)
    assert run.info.status == "FINISHED"
    assert "lakelens.failure" not in run.data.tags
    history = client.get_metric_history(folder.name, "val_loss")
    assert [point.step for point in history] == [5, 10, 15]
    assert sorted(point.step for point in client.get_metric_history(folder.name, "loss")) == [5, 6, 10, 12, 15]
    assert [str(path) for path in folder.glob("*-*")] == [result["checkpoint"]]
    assert main(resume) == 2
    assert f"run {folder.name} is FINISHED" in capsys.readouterr().err


@pytest.mark.unit
def test_a_dry_run_resolves_and_counts_and_writes_nothing(keys, table, tmp_path, capsys):
    file = tmp_path / "experiment.yaml"
    file.write_text(json.dumps(keys))
    before = sorted(tmp_path.iterdir())
    two_slots = {"slots_per_trial": 2, "strategy": "horovod_local"}
    assert main(["train", str(file), "--dry-run", "--no-import", "--set", f"resources={json.dumps(two_slots)}"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan == json.loads(json.dumps(plan_of(config_of(keys, resources=two_slots))))
    assert (plan["table"], plan["version"], plan["rows"]) == (str(table), 0, {"train": 90, "validation": 21})
    assert plan["strategy"] == "horovod_local"
    assert (plan["ranks"], plan["where"], plan["steps_per_epoch"], plan["steps"]) == (2, "driver", 6, 15)
    assert plan["image_batch_bytes_per_rank"] == 8 * 16 * 16 * 3 * 4
    assert plan["warnings"] == []
    with pytest.raises(ConfigurationError, match=r"use lakelens\.search"):
        plan_of(config_of(keys, searcher={"name": "random", "max_trials": 3}))
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.unit
def test_a_batch_larger_than_the_split_and_equal_splits_are_warnings_in_a_dry_run_and_a_training(keys, table, caplog):
    data, sizes = {"table": str(table), "validation_split": "train"}, {"global_batch_size": 100}
    config = config_of(keys, data=data, hyperparameters=sizes)
    larger, same = plan_of(config)["warnings"]
    assert larger.startswith("global_batch_size 100 is larger than the training split (train), which has 90 rows")
    assert same.startswith("the training split (train) contains the validation split (train)")
    caplog.clear()
    ExperimentPlan.of(config)
    assert [record.message for record in caplog.records] == [larger, same]
    (whole,) = plan_of(config_of(keys, data={"table": str(table), "train_split": None}))["warnings"]
    assert whole.startswith("the training split (the whole table) contains the validation split (validation)")


@pytest.mark.unit
def test_a_deterministic_experiment_sets_one_thread_and_deterministic_operations_of_its_ranks(keys):
    exact = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1", "TF_DETERMINISTIC_OPS": "1"}
    exact["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    config = config_of(keys, reproducibility={"deterministic": True}, resources={"env": {"MINE": "1"}})
    assert Strategy.of(config).runner(config.resources, "t", None).env == exact | {"MINE": "1"}
    assert Strategy.of(config_of(keys)).env == {}


@pytest.mark.unit
def test_arguments_replace_keys_of_config_and_these_keys_of_the_experiment(keys, tmp_path, capsys):
    file = tmp_path / "experiment.yaml"
    file.write_text(json.dumps(keys))
    config = {"searcher": {"max_length": {"batches": 2}}, "early_stopping": {"patience": 4}}
    for experiment in (file, keys, config_of(keys)):
        found = experiment_of(
            experiment,
            config=config,
            epochs=3,
            hyperparameters={"learning_rate": 0.5, "dropout": None},
            slots_per_trial=2,
            strategy="horovod_local",
        )
        assert (found.searcher.max_length.epochs, found.searcher.metric) == (3, "val_loss")
        assert found.early_stopping.patience == 4
        assert found.hyperparameters == {"learning_rate": 0.5, "dropout": None, "global_batch_size": 16}
        assert (found.resources.strategy, found.resources.slots_per_trial) == ("horovod_local", 2)
        assert found.name == "tiny"
    given = experiment_of("tables/photos@3", seed=7, image_size=(8, 16), overrides=["searcher.metric=loss"])
    assert (given.data.version, given.data.image_size, given.searcher.metric) == (3, [8, 16], "loss")
    assert given.reproducibility.experiment_seed == 7
    moment = datetime(2026, 1, 2, tzinfo=timezone.utc)
    assert experiment_of("tables/photos", version=moment).data.version == "2026-01-02T00:00:00+00:00"
    assert experiment_of({"data": {"table": "t", "version": 3}}, version="latest").data.version == "latest"
    with pytest.raises(InvalidArgumentError, match=r"config='experiment\.yaml': give a dict"):
        experiment_of("tables/photos", config="experiment.yaml")
    with pytest.raises(InvalidArgumentError, match="names a version, and version=2 does too"):
        experiment_of("tables/photos@3", version=2)
    assert main(["train", str(file), "--dry-run", "--no-import", "--epochs", "3"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 18
