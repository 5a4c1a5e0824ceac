"""Rules of trainings with the key of a job: a scheduler's retry trains nothing twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from coloured_tables import add_rows
from driven_trainings import Place, driver_of, make_place, wait_until_gone
from job_script import PHASES
from segment_jobs import assert_equal_to_the_bit

from lakelens.errors import CheckpointNotFoundError, InvalidArgumentError
from lakelens.job_keys import Job
from lakelens.tracking.run_listing import runs, show_run
from lakelens.tracking.runs import open_client
from lakelens.training.experiment.train import train

pytestmark = pytest.mark.tensorflow

SCRIPT = str(Path(__file__).parents[1] / "job_script.py")


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Place:
    return make_place(tmp_path_factory.mktemp("jobs"))


def again(place: Place, name: str, **changes: Any) -> dict[str, Any]:
    """Calls what `driver_of` has called, in this process."""
    experiment = json.loads((place.folder / f"{name}.yaml").read_text())
    result = train({**experiment, **changes.pop("keys", {})}, **changes)
    return vars(result)


@pytest.fixture(scope="module")
def retried(place) -> dict[str, Any]:
    """The result of a job whose first driver was killed and whose table has grown since."""
    with driver_of(place, "killed", job="nightly/train", env={"HOLD_AT": "10"}) as driver:
        (driver.place / "stuck").touch()
        rank = driver.reached()
        os.killpg(driver.process.pid, signal.SIGKILL)
        driver.process.wait()
        wait_until_gone(rank)
        (driver.place / "stuck").unlink()
    add_rows(str(place.folder / "squares"), 500, 40, "train")
    return again(place, "killed")


def test_a_retry_resumes_a_killed_training_and_a_call_after_the_end_returns_its_result(place, retried):
    keys = place.keys("unbroken")
    unbroken = train(keys | {"data": keys["data"] | {"version": 0}})
    assert retried["version"] == 0  # not the version that has come meanwhile
    assert place.history(retried["run_id"]) == place.history(unbroken.run_id)
    assert_equal_to_the_bit(place.last("unbroken"), place.last("killed"))
    shown = show_run("nightly/train", place.store).summary
    assert (shown.run_id, shown.attempt, shown.state) == (retried["run_id"], 2, "FINISHED")
    moved = place.folder / "squares"
    moved.rename(place.folder / "moved")
    try:
        assert again(place, "killed") == retried
    finally:
        (place.folder / "moved").rename(moved)
    with pytest.raises(InvalidArgumentError, match=r"searcher.max_length.epochs was 3 and is 4"):
        again(place, "killed", keys={"searcher": {"max_length": {"epochs": 4}}})
    assert len([run for run in runs(place.store) if run.job == "nightly/train"]) == 1


def test_a_training_whose_checkpoints_are_gone_says_so_and_starts_over_when_asked(place, retried):
    run = retried["run_id"]
    open_client(place.store).set_terminated(run, "FAILED")
    shutil.rmtree(place.folder / "killed" / "checkpoints" / run)
    with pytest.raises(CheckpointNotFoundError, match=f"run {run} of job 'nightly/train' has trained, and its checkp"):
        again(place, "killed")
    step = {"batches": 1}
    shorter = {"searcher": {"max_length": step}, "min_checkpoint_period": step, "min_validation_period": step}
    result = again(place, "killed", keys=shorter, job=Job("nightly/train", takeover=True, from_start=True))
    assert result["run_id"] != run
    assert show_run("nightly/train", place.store).summary.run_id == result["run_id"]
    assert show_run(run, place.store).summary.job is None


@pytest.mark.long
def test_a_second_call_follows_the_first_and_a_takeover_ends_it(place):
    with driver_of(place, "followed", job="followed", env={"HOLD_AT": "7"}) as driver:
        (driver.place / "until paused").touch()
        driver.reached()
        yaml = f"{place.folder}/followed.yaml"
        with driver_of(place, "followed", yaml) as follower:
            follower.wait_for("job followed: run")
            (driver.place / "until paused").unlink()
            # Of the first driver's process the file `stderr` is the follower's now.
            results = [one.end() for one in (driver, follower)]
        assert [code for code, _ in results] == [0, 0]
        assert results[0][1] == results[1][1]
    with driver_of(place, "taken", job="taken", env={"HOLD_AT": "7"}) as driver:
        (driver.place / "until paused").touch()
        driver.reached()
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(driver.end)
            ended.add_done_callback(lambda _: (driver.place / "until paused").unlink())
            result = again(place, "taken", job=Job("taken", takeover=True))
        code, said = ended.result()
    assert (code, said["error"]) == (130, "TrainingPaused")
    assert [step for step, _ in place.history(result["run_id"])] == [1, 2, 3]
    assert show_run("taken", place.store).summary.attempt == 2


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_training_whose_driver_is_killed_in_each_phase_ends_as_one_that_was_not(place):
    keys = {"tracking": {"uri": place.store, "register_as": "squares"}}
    unbroken = call(place.keys("not killed", **keys), None)
    assert unbroken.returncode == 0, unbroken.stderr
    keys = place.keys("killed in each phase", job="phases", **keys)
    for phase in PHASES:
        killed = call(keys, phase)
        assert killed.returncode == -signal.SIGKILL, f"{phase}: {killed.stderr}"
    ended, again = call(keys, None), call(keys, None)
    assert ended.returncode == 0, ended.stderr
    result, expected = (json.loads(one.stdout.splitlines()[-1]) for one in (ended, unbroken))
    assert again.stdout.splitlines()[-1] == ended.stdout.splitlines()[-1]
    assert (result["metrics"], result["best_epoch"]) == (expected["metrics"], expected["best_epoch"])
    assert_equal_to_the_bit(place.last("not killed"), place.last("killed in each phase"))
    assert place.history(result["run_id"]) == place.history(expected["run_id"])
    client = open_client(place.store)
    assert [run.run_id for run in runs(place.store) if run.job == "phases"] == [result["run_id"]]
    assert client.get_model_version("squares", "2").run_id == result["run_id"]
    # Killed after a registration, a training registers its model again, of the same run.
    assert {one.run_id for one in client.search_model_versions("name = 'squares'")} == {
        expected["run_id"],
        result["run_id"],
    }


def call(keys: dict[str, Any], phase: str | None) -> subprocess.CompletedProcess[str]:
    """Trains in a process that kills itself in a phase."""
    command = [sys.executable, SCRIPT, json.dumps({"keys": keys, "phase": phase})]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
