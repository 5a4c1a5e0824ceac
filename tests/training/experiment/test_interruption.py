"""Rules of what ends a training from outside: another terminal, signals, a killed driver, a full disk.

The driver is the command in a process of its own; the ranks are real.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
import time
from typing import Any

import pytest
from driven_trainings import PATIENCE_S, STEPS, Place, driver_of, make_place, wait_until_gone
from segment_jobs import assert_equal_to_the_bit

from lakelens.errors import RankFailedError
from lakelens.jobs.cli import main
from lakelens.pausing import pausing
from lakelens.tracking.run_listing import show_run
from lakelens.tracking.runs import open_client
from lakelens.training.experiment.train import train
from lakelens.training.runner.runner import HorovodRunner


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Place:
    return make_place(tmp_path_factory.mktemp("interruptions"))


@pytest.mark.horovod
@pytest.mark.long
def test_two_ranks_pause_when_another_terminal_asks_and_go_on_when_it_says_so(place, capsys):
    with driver_of(place, "asked", ranks=2, env={"HOLD_AT": "7"}) as driver:
        (driver.place / "until paused").touch()
        driver.reached()
        run = driver.run_id()
        arguments = [run, "--tracking-uri", place.store]
        assert main(["runs", "pause", *arguments, "--wait-s", str(PATIENCE_S)]) == 0
        assert last_line(capsys)["state"] == "PAUSED"
        code, said = driver.end()
    assert (code, said["error"]) == (130, "TrainingPaused")
    assert f"lakelens train --resume {run}" in said["message"]
    paused = place.last("asked")
    assert 7 <= paused.metadata["step"] < STEPS
    (driver.place / "until paused").unlink()
    assert main(["train", "--resume", *arguments]) == 0
    result = last_line(capsys)
    assert (result["run_id"], result["ranks"], result["epochs"]) == (run, 2, 3)
    assert [step for step, _ in place.history(run)] == [1, 2, 3]
    assert main(["runs", "pause", *arguments]) == 2
    assert f"run {run} is FINISHED; only a running training can pause" in last_line(capsys)["message"]


@pytest.mark.tensorflow
def test_a_training_that_another_terminal_kills_ends_at_once_with_its_ranks(place, capsys):
    with driver_of(place, "killed", env={"HOLD_AT": "7"}) as driver:
        (driver.place / "stuck").touch()
        rank = driver.reached()
        run = driver.run_id()
        assert main(["runs", "kill", run, "--tracking-uri", place.store, "--wait-s", str(PATIENCE_S)]) == 0
        assert last_line(capsys)["state"] == "KILLED"
        code, said = driver.end()
    assert (code, said["error"]) == (130, "TrainingKilled")
    assert f"run {run} was killed by another process" in said["message"]
    wait_until_gone(rank)
    assert place.last("killed").metadata["step"] == 6


@pytest.mark.unit
@pytest.mark.parametrize(("notice", "shown"), [("pausing", "lakelens: pausing; interrupt again"), (None, "")])
def test_a_terminal_shows_that_a_call_pauses_only_if_it_can(notice, shown, monkeypatch):
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    heard: list[int] = []
    with pausing(heard.append, notice):
        os.kill(os.getpid(), signal.SIGINT)
    assert heard == [signal.SIGINT]
    assert shown in terminal.getvalue()
    assert bool(terminal.getvalue()) == bool(shown)


@pytest.mark.unit
def test_only_ranks_of_a_connect_session_cannot_pause():
    session = type("Session", (), {"__module__": "pyspark.sql.connect.session"})()
    assert HorovodRunner(np=-1, spark=session).can_pause
    assert HorovodRunner(np=1, spark=object()).can_pause
    assert not HorovodRunner(np=1, spark=session).can_pause


@pytest.mark.long
@pytest.mark.tensorflow
def test_a_second_interrupt_ends_a_training_at_once_that_cannot_pause(place):
    with driver_of(place, "interrupted twice", in_terminal=True, env={"HOLD_AT": "7"}) as driver:
        (driver.place / "stuck").touch()
        rank = driver.reached()
        driver.interrupt(signal.SIGINT)
        driver.wait_for("pausing after a checkpoint; interrupt again to end at once")
        driver.interrupt(signal.SIGINT)
        code, said = driver.end()
    assert (code, said["error"]) == (130, "KeyboardInterrupt")
    wait_until_gone(rank)
    assert place.state(driver.run_id()) == "KILLED"
    assert place.last("interrupted twice").metadata["step"] == 6


@pytest.mark.long
@pytest.mark.tensorflow
def test_sigterm_pauses_a_training(place):
    with driver_of(place, "terminated", env={"HOLD_AT": "7"}) as driver:
        (driver.place / "until paused").touch()
        driver.reached()
        driver.interrupt(signal.SIGTERM)
        code, said = driver.end()
    assert (code, said["error"]) == (143, "TrainingPaused")
    lines = driver.errors.read_text().splitlines()  # with a line of progress every 30 s of a slow machine
    assert len([line for line in lines if not re.search(r"[\d,]+ of [\d,]+ images|starting the", line)]) == 1, lines
    assert show_run(driver.run_id(), place.store).summary.state == "PAUSED"
    assert place.last("terminated").metadata["step"] >= 7


@pytest.mark.long
@pytest.mark.tensorflow
def test_a_disk_that_is_full_fails_the_run_and_leaves_the_last_whole_checkpoint(place):
    with pytest.raises(RankFailedError, match=r"checkpoint .* cannot be written to .*; complete checkpoints") as found:
        train(place.keys("full", env={"FULL_DISK": "1"}, checkpoint_policy="all"))
    assert "\n" not in str(found.value)
    (folder,) = (place.folder / "full" / "checkpoints").iterdir()
    assert place.state(folder.name) == "FAILED"
    assert "cannot be written" in open_client(place.store).get_run(folder.name).data.tags["lakelens.failure"]
    assert [path.name for path in folder.iterdir()] == [place.last("full").name]
    assert place.last("full").metadata["step"] == 6


@pytest.mark.long
@pytest.mark.horovod
@pytest.mark.timeout(900)
def test_two_ranks_whose_driver_and_whose_rank_are_killed_come_to_the_same_result(place, capsys):
    uninterrupted = train(place.keys("whole of 2", ranks=2))
    # Each step takes a fifth of a second, so that the kills fall at different steps.
    with driver_of(place, "killed twice", env={"HOLD_AT": "0"}, max_restarts=1, ranks=2) as driver:
        (driver.place / "slow").touch()
        rank = driver.reached()
        run = driver.run_id()
        time.sleep(1)
        driver.process.kill()
        wait_until_gone(rank)
    (driver.place / "reached").unlink()
    assert place.state(run) == "RUNNING"
    assert main(["runs", "--tracking-uri", place.store]) == 0
    (listed,) = [entry for entry in last_line(capsys)["runs"] if entry["run_id"] == run]
    assert (listed["state"], "which kept this run, is gone" in listed["failure"]) == ("FAILED", True)
    with driver_of(place, "killed twice", "--resume", run, "--tracking-uri", place.store) as driver:
        os.kill(driver.reached(), signal.SIGKILL)
        assert driver.process.wait(PATIENCE_S) == 0
    assert place.state(run) == "FINISHED"
    assert place.history(run) == place.history(uninterrupted.run_id)
    assert_equal_to_the_bit(place.last("killed twice"), place.last("whole of 2"))
