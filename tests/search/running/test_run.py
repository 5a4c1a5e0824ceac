"""Rules of a whole search, from the call to its runs in MLflow, with real trainings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from coloured_tables import written_again
from journals import events_in
from segment_jobs import assert_equal_to_the_bit

from lakelens.errors import InvalidArgumentError, SearchFailedError, TrialError, VersionNotFoundError
from lakelens.jobs.cli import main
from lakelens.search import SearchResult, resume
from lakelens.search.journal import Journal, journal_folder
from lakelens.search.running.run import search
from lakelens.search.running.trial_runs import plan_search
from lakelens.tracking.runs import REQUEST_TAG, SEARCH_TAG, open_client
from lakelens.training.checkpoints.checkpoint import open_checkpoint
from lakelens.training.configuration.experiment import ExperimentConfig
from lakelens.training.experiment.begun_run import begun_run
from lakelens.training.experiment.config_record import read_config
from lakelens.training.experiment.run_folder import resuming
from lakelens.training.experiment.train import train
from lakelens.training.segments.evaluation import read_counts

pytestmark = pytest.mark.tensorflow


def test_an_experiment_file_is_searched_and_its_runs_lie_below_one(keys, tmp_path, capsys):
    acts = {"type": "categorical", "vals": ["train", "invalid", "diverge"]}
    keys["hyperparameters"] |= {"learning_rate": 0.01, "act": acts}
    keys["searcher"] = {"name": "grid", "metric": "val_accuracy", "max_length": {"epochs": 1}}
    keys["tracking"]["register_as"] = "tiny"
    file = tmp_path / "experiment.yaml"
    file.write_text(json.dumps(keys))  # JSON is YAML
    assert main(["search", "run", str(file), "--set", "resources.max_slots=1"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out.splitlines()[-1])
    # A trial whose loss is not finite has failed, whatever accuracy it has by chance.
    assert found["trials"] == {"completed": 1, "failed": 1, "invalid": 1}
    errors = {event["event"]: event["error"] for event in events_in(keys, found["run_id"]) if event.get("error")}
    assert errors["failed"].startswith("NotFiniteError: ")
    assert errors["invalid"] == "InvalidHyperparameters: no model has these"
    assert found["hyperparameters"]["act"] == "train"
    assert "trial 0: completed at 1 epoch, val_accuracy " in said.err
    assert "(act=train)\n" in said.err
    client = open_client(keys["tracking"]["uri"])
    parent = client.get_run(found["run_id"])
    assert (parent.info.status, parent.info.run_name) == ("FINISHED", "tiny")
    assert parent.data.tags["lakelens.checkpoint_digest"] == found["digest"]
    assert open_checkpoint(client.download_artifacts(found["run_id"], "checkpoint")).digest == found["digest"]
    (logged,) = parent.outputs.model_outputs
    registered = client.get_model_version("tiny", "1")
    assert registered.source == client.get_logged_model(logged.model_id).artifact_location  # MLflow itself loads it
    children = client.search_runs([found["experiment_id"]], f"tags.`mlflow.parentRunId` = '{found['run_id']}'")
    by_trial = {run.data.tags["lakelens.trial"]: run for run in children}
    statuses = {trial: run.info.status for trial, run in by_trial.items()}
    assert statuses == {"0": "FINISHED", "1": "FAILED", "2": "FAILED"}
    best = by_trial["0"]
    assert best.info.run_id == found["best_run"]
    assert best.data.params["hyperparameters.learning_rate"] == "0.01"
    assert (best.data.tags["lakelens.trial.state"], best.data.tags["lakelens.trial.length"]) == ("completed", "1")
    assert "no model has these" in by_trial["1"].data.tags["lakelens.failure"]
    for action in ("resume", "pause"):
        assert main(["search", action, found["run_id"], "--tracking-uri", keys["tracking"]["uri"]]) == 2
    assert "no process runs the search" in capsys.readouterr().err


@pytest.mark.long
def test_the_trials_that_were_the_best_when_they_ended_are_counted_by_class_and_no_others(keys):
    keys["hyperparameters"]["learning_rate"] = {"type": "categorical", "vals": [0.01, 1e-7, 0.03, 1e-6]}
    keys["searcher"] = {"name": "grid", "metric": "val_loss", "max_length": {"epochs": 2}}
    keys["resources"] = {"max_slots": 1}
    result = search(keys)
    best, wanted = float("inf"), set()
    for event in events_in(keys, result.run_id):
        if event["event"] == "validated" and event["metric"] < best:
            best, leader = event["metric"], event["trial"]
        if event["event"] == "completed" and event["trial"] == leader:
            wanted.add(leader)
    run_ids, folder = result.trials()["run_id"], Path(keys["checkpoint_storage"]["path"])
    assert {trial for trial in range(4) if read_counts(folder / run_ids[trial])} == wanted
    assert result.best_trial in wanted
    assert len(wanted) < 4
    files = open_client(result.tracking_uri).list_artifacts(result.run_id, "validation")
    assert "validation/confusion_matrix.png" in {file.path for file in files}


def promoted(keys: dict[str, Any]) -> tuple[SearchResult, list[int]]:
    """A search on two slots, and its completed trials that were paused once and went on."""
    for seed in range(8):  # which slot is the first to report decides whether a trial waits before it goes on
        result = search({**keys, "reproducibility": {"experiment_seed": seed}})
        states, events = result.trials()["state"], events_in(keys, result.run_id)
        launched = [event["trial"] for event in events if event["event"] == "launched"]
        paused = {event["trial"] for event in events if event["event"] == "paused"}
        if again := [trial for trial in paused if launched.count(trial) > 1 and states[trial] == "completed"]:
            return result, again
    raise AssertionError("no trial was paused and continued")


@pytest.mark.long
def test_a_trial_that_was_paused_and_shared_its_process_is_equal_to_the_bit_to_a_training_of_its_own(keys):
    keys["resources"]["env"] = {"TF_NUM_INTRAOP_THREADS": "1"}
    keys["checkpoint_storage"] |= {"save_experiment_best": 2, "save_trial_best": 0, "save_trial_latest": 0}
    result, again = promoted(keys)
    frame = result.trials()
    assert len(frame) == 6
    assert set(frame["state"]) == {"completed", "stopped"}
    folder = Path(keys["checkpoint_storage"]["path"])
    kept = {path.name: path for run_id in frame["run_id"] for path in (folder / run_id).glob("epoch-*")}
    assert len(kept) == 2
    assert result.best()["checkpoint"] in {str(path) for path in kept.values()}
    client = open_client(result.tracking_uri)

    def curve(run_id: str) -> list[tuple[int, float]]:
        return [(point.step, point.value) for point in client.get_metric_history(run_id, "val_loss")]

    assert all([step for step, _ in curve(frame["run_id"][trial])] == [1, 2, 3, 4] for trial in again)
    config = read_config(result.tracking_uri, frame["run_id"][result.best_trial])
    storage = config.checkpoint_storage.model_copy(update={"save_trial_latest": 1})
    alone = train(config.model_copy(update={"checkpoint_storage": storage}))
    assert alone.metrics["val_loss"] == result.value
    assert_equal_to_the_bit(open_checkpoint(result.checkpoint), open_checkpoint(alone.checkpoint))
    paused = frame["run_id"][again[0]]
    assert curve(train(read_config(result.tracking_uri, paused)).run_id) == curve(paused)


@pytest.mark.long
def test_a_search_whose_trials_have_ended_is_resumed_without_training_and_a_trial_without_its_best_model_is_passed_over(
    keys, caplog
):
    keys["searcher"] = {"name": "random", "max_trials": 2, "metric": "val_loss", "max_length": {"epochs": 1}}
    first = search(keys)
    launched = [event for event in events_in(keys, first.run_id) if event["event"] == "launched"]
    shutil.rmtree(first.checkpoint)
    client = open_client(first.tracking_uri)
    client.set_terminated(first.run_id, "KILLED")
    found = resume(first.run_id, tracking_uri=first.tracking_uri)
    events = events_in(keys, first.run_id)
    assert [event for event in events if event["event"] == "launched"] == launched
    assert found.best_trial == 1 - first.best_trial
    assert events[-1]["best_trial"] == found.best_trial
    assert found.value == found.trials()["best"][found.best_trial]
    assert f"trials [{first.best_trial}] were better" in caplog.text
    parent = client.get_run(first.run_id)
    assert (parent.info.status, parent.data.tags["lakelens.checkpoint_digest"]) == ("FINISHED", found.digest)
    assert parent.data.metrics["best_val_loss"] == found.value
    shutil.rmtree(found.checkpoint)
    client.set_terminated(first.run_id, "KILLED")
    assert resume(first.run_id, tracking_uri=first.tracking_uri).checkpoint == ""
    assert f"keeps trial {first.best_trial} and no model" in caplog.text


@pytest.mark.long
def test_ranks_that_die_after_their_trials_were_decided_cost_the_search_neither_trials_nor_models(keys, tmp_path):
    keys["searcher"] |= {"max_trials": 4, "max_length": {"epochs": 2}}  # with rungs at 1 and 2
    keys["resources"] = {"max_slots": 1, "env": {"DIES_ONCE_IN": str(tmp_path)}}
    keys["max_restarts"] = 1
    result = search(keys)
    assert set(result.states) == {"completed", "stopped"}
    restarted = [event["length"] for event in events_in(keys, result.run_id) if event["event"] == "restarted"]
    assert restarted == [2]  # at the first rung the trial was paused
    assert set((tmp_path / "attempts").read_text()) == {"0", "1"}  # what hvd.attempt() returns after the restart
    assert open_checkpoint(result.checkpoint).metadata["metrics"]["val_loss"] == result.value


def test_what_is_no_search_or_has_no_journal_or_another_table_or_is_resumed_elsewhere_is_not_resumed(keys, tmp_path):
    plan = plan_search(ExperimentConfig.read(keys))
    uri = keys["tracking"]["uri"]

    def killed(tags: dict[str, str]) -> str:
        with begun_run(plan, tags=tags, params={}) as run:
            pass
        open_client(uri).set_terminated(run.run_id, "KILLED")
        return run.run_id

    with pytest.raises(InvalidArgumentError, match="is not a search"):
        resume(killed({}), tracking_uri=uri)
    with pytest.raises(InvalidArgumentError, match="ended before its first trial has to be started again"):
        resume(killed({SEARCH_TAG: "random"}), tracking_uri=uri)
    # Another process has just begun to resume it, and has not set its status yet.
    run_id = killed({SEARCH_TAG: "random", REQUEST_TAG: "{}"})
    Journal(journal_folder(plan.root, run_id)).append([{"event": "started", "time": 1}])
    with resuming(plan.root, run_id), pytest.raises(InvalidArgumentError, match="is being resumed by another process"):
        resume(run_id, tracking_uri=uri)
    with (
        written_again(Path(keys["data"]["table"])),
        pytest.raises(VersionNotFoundError, match=rf"@0 has other files than when run {run_id} read it"),
    ):
        resume(run_id, tracking_uri=uri)
    left = open_client(uri).get_run(run_id)
    assert (left.info.status, left.data.tags[REQUEST_TAG]) == ("KILLED", "{}")


@pytest.mark.long
def test_trials_that_raise_or_die_leave_the_others_alone(keys):
    acts = {"type": "categorical", "vals": ["train", "raise", "die"]}
    keys["hyperparameters"] |= {"learning_rate": 0.01, "act": acts}
    keys["searcher"] = {"name": "grid", "metric": "val_loss", "max_length": {"epochs": 1}}
    keys["max_restarts"] = 1
    result = search(keys)
    frame = result.trials().set_index("hyperparameters.act")
    assert (result.states, result.hyperparameters["act"]) == ({"completed": 1, "failed": 2}, "train")
    for act, words in (("raise", "this trial cannot be built"), ("die", "SIGKILL")):
        assert words in frame["error"][act]
        assert frame["restarts"][act] == 1
    assert open_client(result.tracking_uri).get_run(frame["run_id"]["raise"]).info.status == "FAILED"


@pytest.mark.long
def test_a_search_without_its_metric_ends_at_once_and_names_those_there_are_and_one_of_failures_fails(keys):
    keys["searcher"] |= {"metric": "val_recall", "smaller_is_better": False}
    with pytest.raises(TrialError, match=r"metric 'val_recall' is not among this job's metrics \(.*val_loss\)"):
        search(keys)
    keys["searcher"] = {"name": "random", "max_trials": 2, "metric": "val_loss", "max_length": {"epochs": 1}}
    keys["hyperparameters"] = {"learning_rate": {"type": "double", "minval": 0.1, "maxval": 0.2}, "act": "raise"}
    with pytest.raises(SearchFailedError, match=r"none of 2 trials gave a number for val_loss; trial 0: .*"):
        search(keys)
