"""What a new run may begin with: a finished run's whole state, or another model's weights."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coloured_tables import add_rows, coloured_table, written_again
from mlflow_stores import put_store
from segment_jobs import EXACT, NOISY, assert_equal_to_the_bit

from lakelens.errors import CheckpointError, ConfigurationError, ModelNotFoundError, VersionNotFoundError
from lakelens.tracking.logged_models import register_model
from lakelens.tracking.runs import open_client
from lakelens.training.checkpoints.checkpoint import Checkpoint, last_checkpoint, open_checkpoint, write_checkpoint
from lakelens.training.checkpoints.manifests import STATE_FILE
from lakelens.training.checkpoints.references import ModelRef
from lakelens.training.checkpoints.warm_start import WarmStart, take_weights
from lakelens.training.configuration.experiment import ExperimentConfig
from lakelens.training.experiment import starts
from lakelens.training.experiment.config_record import read_config
from lakelens.training.experiment.reproduce import reproduce
from lakelens.training.experiment.run_trial import TrainResult
from lakelens.training.experiment.starts import TrainingStart
from lakelens.training.experiment.train import resume, train

Keys = dict[str, Any]


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> Keys:
    folder = tmp_path_factory.mktemp("starts")
    rate = 'Adam(self.context.get_hparam("learning_rate", 0.01),'
    (folder / "noisy.py").write_text(textwrap.dedent(NOISY).replace("Adam(0.01,", rate))
    return {
        "entrypoint": f"{folder / 'noisy.py'}:Noisy",
        "data": {"table": str(coloured_table(folder / "squares")), "version": 0},
        "hyperparameters": {"global_batch_size": 16},
        "searcher": {"max_length": {"epochs": 2}},
        "resources": {"env": EXACT},
        "checkpoint_storage": {"path": str(folder / "checkpoints")},
        "tracking": {"uri": put_store(folder)},
    }


@pytest.fixture(scope="module")
def finished(keys) -> TrainResult:
    return train(keys)


def last_of(keys: Keys, run_id: str) -> Checkpoint:
    found = last_checkpoint(Path(keys["checkpoint_storage"]["path"], run_id))
    assert found is not None
    return found


@pytest.mark.long
@pytest.mark.tensorflow
def test_a_finished_run_that_is_trained_further_is_one_of_the_larger_length_to_the_bit(keys, finished, monkeypatch):
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    longer = keys | {"searcher": {"max_length": {"epochs": 4}}}
    further = longer | {"continue_from": finished.run_id, "job": "further"}
    with monkeypatch.context() as patch:  # between its checkpoints and its metrics
        patch.setattr(starts, "measured_points", interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(further)
    continued = train(further)
    at_once = train(longer)
    assert continued.run_id != finished.run_id
    assert_equal_to_the_bit(last_of(keys, continued.run_id), last_of(keys, at_once.run_id))
    assert (continued.metrics, continued.best_epoch) == (at_once.metrics, at_once.best_epoch)
    client = open_client(keys["tracking"]["uri"])
    assert client.get_run(continued.run_id).data.tags["lakelens.continued_from"] == finished.run_id
    for name in ("loss", "val_loss"):
        told = [client.get_metric_history(run.run_id, name) for run in (continued, at_once)]
        mine, theirs = ([(point.step, point.value) for point in history] for history in told)
        assert mine == theirs
        assert [step for step, _ in mine] == [1, 2, 3, 4]
    # The run that was continued keeps its own checkpoints.
    assert open_checkpoint(finished.checkpoint).digest == finished.digest


def longer(**changes: Any) -> Keys:
    return {"searcher": {"max_length": {"epochs": 3}}} | changes


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"searcher": {"max_length": {"epochs": 2}}}, r"\(2 epochs\) is 12 steps and run \w+ has trained 12"),
        (longer(hyperparameters={"global_batch_size": 8}), "batch_size is 8 and was 16.*leave the key unchanged"),
        (longer(hyperparameters={"global_batch_size": 16, "learning_rate": 0.1}), "{'learning_rate': 0.1} and was {}"),
        ({"searcher": {"max_length": {"epochs": 3}, "metric": "val_accuracy"}}, r"val_accuracy \(max\) and was val_l"),
        (longer(reproducibility={"experiment_seed": 5}), "is experiment_seed=5 .* and was experiment_seed=0"),
        (longer(optimizations={"warmup_epochs": 1.0}), "take its weights alone as warm_start: runs:/"),
    ],
)
def test_a_run_is_continued_by_more_of_the_same_training_only(keys, finished, changes, words):
    with pytest.raises(ConfigurationError, match=words):
        train(keys | {"continue_from": finished.run_id} | changes)


@pytest.mark.tensorflow
def test_a_run_whose_table_has_another_version_is_not_continued(keys, finished):
    add_rows(keys["data"]["table"], 500, 3, "train")
    changed = {"data": keys["data"] | {"version": "latest"}}
    with pytest.raises(ConfigurationError, match=r"data\.version is 1 and was 0 in run"):
        train(keys | longer(**changed) | {"continue_from": finished.run_id})


def continue_it(keys: Keys, run_id: str) -> None:
    train(keys | longer() | {"continue_from": run_id})


def resume_it(keys: Keys, run_id: str) -> None:
    client = open_client(keys["tracking"]["uri"])
    client.set_terminated(run_id, "FAILED")
    try:
        resume(run_id, tracking_uri=keys["tracking"]["uri"])
    finally:
        client.set_terminated(run_id, "FINISHED")


def reproduce_it(keys: Keys, run_id: str) -> None:
    reproduce(run_id, tracking_uri=keys["tracking"]["uri"])


@pytest.mark.tensorflow
@pytest.mark.parametrize("again", [continue_it, resume_it, reproduce_it])
def test_a_table_that_was_deleted_and_written_again_is_not_taken_for_the_one_of_a_run(keys, finished, again):
    client = open_client(keys["tracking"]["uri"])
    runs = {run.info.run_id for run in client.search_runs([finished.experiment_id])}
    with (
        written_again(Path(keys["data"]["table"])),
        pytest.raises(VersionNotFoundError, match=rf"squares@0 has other files than when run {finished.run_id} read"),
    ):
        again(keys, finished.run_id)
    assert {run.info.run_id for run in client.search_runs([finished.experiment_id])} == runs


@pytest.mark.tensorflow
def test_a_run_that_has_not_finished_or_lost_its_checkpoints_is_not_continued(keys, finished, tmp_path):
    client = open_client(keys["tracking"]["uri"])
    experiment = client.get_experiment_by_name("lakelens").experiment_id
    failed = client.create_run(experiment)
    client.set_terminated(failed.info.run_id, "FAILED")
    with pytest.raises(ConfigurationError, match=r"is FAILED; only a finished run can be continued"):
        train(keys | longer() | {"continue_from": failed.info.run_id})
    folder = Path(keys["checkpoint_storage"]["path"], finished.run_id)
    folder.rename(tmp_path / "elsewhere")
    try:
        with pytest.raises(CheckpointError, match=r"holds no checkpoint of run .* put them back, or"):
            train(keys | longer() | {"continue_from": finished.run_id})
    finally:
        (tmp_path / "elsewhere").rename(folder)


@pytest.mark.tensorflow
def test_a_warm_start_takes_the_layers_that_fit_another_number_of_classes(keys, finished, capfd):
    # Two of the three classes, and a rate at which nothing changes.
    data = keys["data"] | {"filters": {"label": [0, 1]}, "class_names": ["blue", "green"]}
    changes = {"data": data, "searcher": {"max_length": {"batches": 1}}, "min_validation_period": {"batches": 1}}
    changes["hyperparameters"] = keys["hyperparameters"] | {"learning_rate": 0.0}
    store = keys["tracking"]["uri"]
    register_model(finished.run_id, "starts", "champion", store)
    result = train(keys | changes | {"warm_start": "models:/starts@champion"})
    said = capfd.readouterr().out
    assert "warm_start models:/starts@champion: 2 of 3 layers take its weights" in said
    assert "; these start from scratch: dense (shapes [(4, 3), (3,)] there, [(4, 2)" in said
    before, after = (open_checkpoint(each.checkpoint).load_model() for each in (finished, result))
    np.testing.assert_array_equal(before.get_layer("conv2d").kernel.numpy(), after.get_layer("conv2d").kernel.numpy())
    tags = open_client(store).get_run(result.run_id).data.tags
    assert tags["lakelens.warm_start"] == "models:/starts@champion"
    assert tags["lakelens.warm_start_digest"] == finished.digest
    assert not (Path(result.checkpoint).parent / "warm-start").exists()
    # The alias may be moved; what the run remembers stays.
    assert read_config(store, result.run_id).warm_start == f"runs:/{finished.run_id}"


@pytest.mark.tensorflow
def test_a_warm_start_without_a_layer_that_fits_is_refused(finished):
    import keras

    layers = [keras.Input((16, 16, 3)), keras.layers.Conv2D(5, 3, name="other"), keras.layers.Dense(3, name="head")]
    start = WarmStart(f"runs:/{finished.run_id}", Path(finished.checkpoint))
    with pytest.raises(CheckpointError, match=r"none of its layers \(conv2d, .* \(other, head\)"):
        take_weights(keras.Sequential(layers), start)


@pytest.mark.system
def test_a_classifier_is_not_started_from_a_detector(keys, tmp_path):
    described = {"input": {"height": 16, "width": 16, "channels": 3}, "backend": "keras", "task": {"name": "detection"}}
    files = {name: lambda path: path.write_bytes(b"{}") for name in ("model.keras", STATE_FILE)}
    detector = write_checkpoint(tmp_path / "checkpoints", files=files, metadata=described, name="detector")
    words = r"is a model for task detection, and this experiment's task is classification; name a model for classif"
    with pytest.raises(ConfigurationError, match=words):
        train(keys | {"warm_start": str(detector.path)})


@pytest.mark.unit
@pytest.mark.parametrize(
    ("named", "store", "recorded"),
    [
        ("models:/starts@champion", "sqlite:///s.db", "runs:/r1"),
        ("experiment:starts", "sqlite:///s.db", "runs:/r1"),
        ("search:r1", "sqlite:///s.db", "runs:/r1"),
        ("runs:/r1/other", "sqlite:///s.db", "runs:/r1/other"),
        ("checkpoints/epoch-0001", None, "/here/checkpoints/epoch-0001"),
    ],
)
def test_a_warm_start_is_recorded_so_that_it_stays_the_same_model(keys, named, store, recorded):
    model = ModelRef(named, Path("/here/checkpoints/epoch-0001"), "digest", "r1", {}, store)
    config = ExperimentConfig.read(keys | {"warm_start": named})
    assert TrainingStart(model=model).pinned(config).warm_start == recorded


@pytest.mark.unit
def test_a_warm_start_that_is_no_model_is_refused_before_a_run_begins(keys, tmp_path):
    store = {"tracking": {"uri": f"sqlite:///{tmp_path}/mlflow.db"}}
    with pytest.raises(ModelNotFoundError, match="nowhere"):
        train(keys | store | {"warm_start": str(tmp_path / "nowhere")})
    assert not (tmp_path / "mlflow.db").exists()
