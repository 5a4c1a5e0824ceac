"""Rules of whole runs of PyTorch Trials: continued, begun with other weights, stopped early, searched."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from coloured_tables import coloured_table
from mlflow_stores import put_store

import lakelens
from lakelens.errors import InvalidArgumentError, InvalidHyperparameters, TrialError
from lakelens.jobs.cli import main
from lakelens.search.journal import journal_folder, read_events
from lakelens.tracking.runs import open_client
from lakelens.training.checkpoints.checkpoint import last_checkpoint, open_checkpoint
from lakelens.training.checkpoints.torch_files import OPTIMIZER_FILE, read_tensors, read_values
from lakelens.training.experiment.reproduce import reproduce
from lakelens.training.experiment.run_trial import TrainResult
from lakelens.training.experiment.train import train
from lakelens.training.tasks.classification import Classification
from lakelens.training.trials.context import TrialContext

pytestmark = pytest.mark.torch
Keys = dict[str, Any]


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> Keys:
    folder = tmp_path_factory.mktemp("runs")
    return {
        "entrypoint": "lakelens.training.trials.torch_small_cnn:TorchSmallCnn",
        "data": {"table": str(coloured_table(folder / "squares")), "version": 0},
        "hyperparameters": {"global_batch_size": 16, "filters": 4, "dropout": 0.2},
        "searcher": {"max_length": {"epochs": 2}},
        "reproducibility": {"deterministic": True},
        "checkpoint_storage": {"path": str(folder / "checkpoints")},
        "tracking": {"uri": put_store(folder)},
    }


@pytest.fixture(scope="module")
def finished(keys) -> TrainResult:
    return train(keys)


def losses(keys: Keys, run_id: str) -> list[tuple[int, float]]:
    points = open_client(keys["tracking"]["uri"]).get_metric_history(run_id, "val_loss")
    return [(point.step, point.value) for point in points]


def weights(checkpoint: str) -> dict[str, Any]:
    return read_tensors(open_checkpoint(checkpoint).model_path)


def test_a_run_is_reproduced_to_the_bit(keys, finished):
    assert reproduce(finished.run_id, tracking_uri=keys["tracking"]["uri"]).differences == []


def test_a_finished_run_is_trained_further_with_its_whole_state(keys, finished):
    continued = train(keys | {"searcher": {"max_length": {"epochs": 3}}, "continue_from": finished.run_id})
    measured = losses(keys, continued.run_id)
    assert [step for step, _ in measured] == [1, 2, 3]
    assert measured[:2] == losses(keys, finished.run_id)
    assert measured[2] != measured[1]
    last = last_checkpoint(Path(continued.checkpoint).parent)
    found = read_values(last.path / OPTIMIZER_FILE)
    assert found["scheduler"]["last_epoch"] == 3
    assert float(found["optimizer"]["state"][0]["step"]) == 3 * 6


def test_a_warm_start_takes_the_weights_that_fit_and_early_stopping_restores_the_best_ones(keys, finished, capfd):
    # Two of the three classes. The largest loss is wanted, so each epoch is worse than the one before.
    changes = {
        "data": keys["data"] | {"filters": {"label": [0, 1]}, "class_names": ["blue", "green"]},
        "hyperparameters": keys["hyperparameters"] | {"learning_rate": 0.001},
        "searcher": {"max_length": {"epochs": 9}, "metric": "val_loss", "smaller_is_better": False},
        "early_stopping": {"patience": 1, "restore_best_weights": True},
    }
    result = train(keys | changes | {"warm_start": f"runs:/{finished.run_id}"})
    said = capfd.readouterr().out
    assert "these start from scratch: 12.weight (shapes (3, 64) there, (2, 64) here), 12.bias" in said
    assert [step for step, _ in losses(keys, result.run_id)] == [1, 2]
    assert "the model has the weights of its best validation again, after step 4" in said
    # In four steps Adam moves a weight by no more than four times the rate.
    before, after = weights(finished.checkpoint)["1.weight"], weights(result.checkpoint)["1.weight"]
    assert before.abs().max() > 0.05
    assert 0 < before.sub(after).abs().max() < 0.0041
    tags = open_client(keys["tracking"]["uri"]).get_run(result.run_id).data.tags
    assert tags["lakelens.warm_start_digest"] == finished.digest


def test_a_search_promotes_a_trial_that_waited_and_trials_that_share_a_process_do_not_disturb_each_other(keys):
    """One slot: the first trial waits for the second. The third has the rate and the seed of the first."""
    changes = {
        "hyperparameters": keys["hyperparameters"]
        | {"learning_rate": {"type": "categorical", "vals": [0.01, 1e-6, 1e-5]}},
        "searcher": {
            **{"name": "adaptive_asha", "metric": "val_loss", "max_length": {"epochs": 2}, "divisor": 2},
            **{"max_trials": 3, "max_concurrent_trials": 3, "bracket_rungs": [2]},
        },
        "resources": {"max_slots": 1},
    }
    result = lakelens.search(keys | changes)
    assert sorted(result.trials()["state"]) == ["completed", "stopped", "stopped"]
    events = read_events(journal_folder(Path(keys["checkpoint_storage"]["path"]), result.run_id))
    assert [event["trial"] for event in events if event["event"] == "launched"] == [0, 1, 2, 0]
    first, second, third = [event["metric"] for event in events if event["event"] == "validated"][:3]
    assert first == third < second
    with pytest.raises(InvalidArgumentError, match="has no checkpoint to compare with: a search records that of its"):
        reproduce(result.best_run, tracking_uri=keys["tracking"]["uri"])


def test_transfer_trains_a_new_head_on_the_backbone_of_a_file(keys, tmp_path):
    import torch
    import torchvision

    torch.manual_seed(3)
    backbone = torchvision.models.get_model("mobilenet_v3_small", weights=None)
    torch.save(backbone.state_dict(), tmp_path / "backbone.pth")
    hyperparameters = {"backbone": "mobilenet_v3_small", "weights": str(tmp_path / "backbone.pth")}
    changes = {
        "entrypoint": "lakelens.training.trials.torch_transfer:TorchTransfer",
        "hyperparameters": {"global_batch_size": 32, **hyperparameters},
        "searcher": {"max_length": {"epochs": 1}},
        "resources": {"slots_per_trial": 2, "strategy": "horovod_local"},
    }
    trained = weights(train(keys | changes).checkpoint)
    for name, value in backbone.state_dict().items():
        if not name.startswith("classifier.3."):
            assert trained[f"1.{name}"].equal(value), name
    assert trained["1.classifier.3.1.weight"].shape[0] == 3


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"backbone": "resnet19"}, InvalidHyperparameters, "torchvision.models has no backbone 'resnet19'; did you"),
        ({"backbone": "squeezenet1_1"}, InvalidHyperparameters, "'squeezenet1_1' does not end in a linear layer"),
        ({"weights": "nowhere.pth"}, TrialError, "weights is 'nowhere.pth': the file does not exist; give 'none' or"),
        ({"weights": "other.pth"}, TrialError, "weights is 'other.pth': these are not weights of mobilenet_v2"),
    ],
)
def test_what_transfer_cannot_train_is_named(keys, tmp_path, monkeypatch, changes, error, words):
    import torch

    from lakelens.training.trials.torch_transfer import TorchTransfer

    monkeypatch.chdir(tmp_path)
    torch.save({"head": torch.zeros(1)}, "other.pth")
    feed = lakelens.DeltaFeed(keys["data"]["table"])
    context = TrialContext(
        hyperparameters=changes, task=Classification(feed.class_names), image_size=(16, 16), training_feed=feed
    )
    with pytest.raises(error, match=words):
        TorchTransfer(context).build_model()


DRY = """
from lakelens.training.trials.torch_small_cnn import TorchSmallCnn

class Good(TorchSmallCnn):
    pass

class NoKey(TorchSmallCnn):
    def training_step(self, model, batch):
        return {"loss": batch["images"].mean()}
"""


@pytest.mark.parametrize(("trial", "words"), [("Good", None), ("NoKey", "TypeError|IndexError|too many dimensions")])
def test_a_dry_run_tries_model_and_step_and_writes_nothing(keys, tmp_path, capsys, trial, words):
    (tmp_path / "trials.py").write_text(DRY)
    file = tmp_path / "experiment.yaml"
    file.write_text(json.dumps(keys | {"entrypoint": f"{tmp_path}/trials.py:{trial}"}))
    before = sorted(tmp_path.parent.rglob("*"))
    code = main(["train", str(file), "--dry-run"])
    err = capsys.readouterr().err
    assert sorted(tmp_path.parent.rglob("*")) == before
    assert (code == 0) == (words is None), err
    assert words is None or re.search(words, err), err
