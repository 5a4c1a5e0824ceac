"""Rules of runs with the key of a job: one run of a key, whoever calls, and how often."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from lakelens.errors import InvalidArgumentError, RunNotResumableError, TrackingError
from lakelens.job_keys import Job
from lakelens.jobs.run_lines import run_table
from lakelens.liveness import Process
from lakelens.tracking import keyed_runs
from lakelens.tracking.heartbeat import FAILURE_TAG, HEARTBEAT_TAG, Heartbeat
from lakelens.tracking.keyed_runs import KeyedRuns, count_attempt, record_result
from lakelens.tracking.run_listing import show_run
from lakelens.tracking.runs import REQUEST_TAG, RunReference, created_run, open_client

pytestmark = pytest.mark.system

ARGUMENTS = {"command": "train", "epochs": 2}


def keyed_in(store: str, key: str, **takeover: bool) -> KeyedRuns:
    return KeyedRuns(store, Job(key, **takeover), ARGUMENTS)


def begun(store: str, folder: Path, key: str) -> RunReference:
    """A run that this process has begun."""
    keyed = keyed_in(store, key)
    run_id = keyed.claimed(keyed.settled(), folder, "keyed", "first")
    experiment = open_client(store).get_run(run_id).info.experiment_id
    return RunReference(store, experiment, run_id, "here")


def end(run: RunReference, status: str) -> None:
    open_client(run.tracking_uri).set_terminated(run.run_id, status)


def test_a_failed_run_is_taken_again_by_one_call_and_others_get_its_result_without_a_password(store, tmp_path):
    run = begun(store, tmp_path, "failed")
    end(run, "FAILED")
    first, second = keyed_in(store, "failed"), keyed_in(store, "failed")
    found, also = first.settled(), second.settled()
    assert first.result_of(found) is None
    assert first.claimed(found, tmp_path, "keyed", None) == run.run_id
    with pytest.raises(RunNotResumableError, match="another process has begun job 'failed'"):
        second.claimed(also, tmp_path, "keyed", None)
    shown = show_run("failed", store).summary
    assert (shown.run_id, shown.job, shown.attempt, shown.state) == (run.run_id, "failed", 2, "RUNNING")
    assert run_table([shown])[1].endswith("failed (2)")
    record_result(run, {"tracking_uri": "postgresql://me:secret@host/db", "digest": "abc", "metrics": {"loss": 0.5}})
    end(run, "FINISHED")
    with pytest.raises(RunNotResumableError):
        second.claimed(also, tmp_path, "keyed", None)
    assert second.result_of(second.settled()) == {"digest": "abc", "metrics": {"loss": 0.5}}


def test_a_start_over_leaves_the_key_to_a_run_that_was_resumed_meanwhile(store, tmp_path):
    run = begun(store, tmp_path, "resumed")
    keyed_in(store, "resumed", takeover=True, from_start=True)._set_aside(run.run_id)
    assert show_run("resumed", store).summary.run_id == run.run_id


def test_a_claimed_run_that_an_error_has_left_has_failed_with_it(store, tmp_path):
    run = begun(store, tmp_path, "left")
    keyed = keyed_in(store, "left")
    keyed.release(run.run_id, InvalidArgumentError("no such folder"))
    found = keyed.settled()
    assert (found.info.status, found.data.tags[FAILURE_TAG]) == ("FAILED", "InvalidArgumentError: no such folder")
    end(run, "FINISHED")
    keyed.release(run.run_id, InvalidArgumentError("later"))
    assert show_run("left", store).summary.state == "FINISHED"


def test_a_run_that_was_created_first_stays_where_locks_are_missing(store, tmp_path, monkeypatch):
    def created_second(*given: Any) -> str:
        first.append(created_run(*given))
        time.sleep(0.01)
        return created_run(*given)

    first: list[str] = []
    keyed = keyed_in(store, "no locks")
    monkeypatch.setattr(keyed_runs, "created_run", created_second)
    with pytest.raises(RunNotResumableError):
        keyed.claimed(None, tmp_path, "keyed", None)
    assert show_run("no locks", store).summary.run_id == first[0]
    open_client(store).delete_run(first[0])
    with pytest.raises(InvalidArgumentError, match="was deleted in MLflow"):
        keyed.settled()  # no second run is left


def test_a_call_follows_a_run_until_it_has_ended(store, tmp_path, capsys):
    run = begun(store, tmp_path, "followed")
    ending = threading.Timer(2.5, end, (run, "FAILED"))
    ending.start()
    found = keyed_in(store, "followed").settled()
    ending.join()
    assert (found.info.run_id, found.info.status) == (run.run_id, "FAILED")
    assert f"job followed: run {run.run_id} is at work (process " in capsys.readouterr().err


def test_a_takeover_asks_the_process_to_pause_and_goes_on(store, tmp_path):
    run = begun(store, tmp_path, "taken over")

    def obey() -> None:
        client = open_client(store)
        while client.get_run(run.run_id).data.tags.get(REQUEST_TAG) != "pause":
            time.sleep(0.1)
        client.set_terminated(run.run_id, "KILLED")

    process = threading.Thread(target=obey)
    process.start()
    found = keyed_in(store, "taken over", takeover=True).settled()
    process.join()
    assert found.info.status == "KILLED"


@pytest.mark.parametrize("silent_s", [5, 300])
def test_a_takeover_gives_up_a_process_that_is_silent_and_not_one_that_lives(store, tmp_path, monkeypatch, silent_s):
    monkeypatch.setattr(keyed_runs, "_TAKEOVER_S", 1.0)
    run = begun(store, tmp_path, f"silent for {silent_s} s")
    elsewhere = Heartbeat(Process("elsewhere", "another machine", 1, 0.0), time.time() - silent_s)
    open_client(store).set_tag(run.run_id, HEARTBEAT_TAG, str(elsewhere))
    keyed = keyed_in(store, f"silent for {silent_s} s", takeover=True)
    if silent_s < 60:
        later = str(Heartbeat(elsewhere.process, time.time()))
        threading.Timer(1.0, lambda: open_client(store).set_tag(run.run_id, HEARTBEAT_TAG, later)).start()
        with pytest.raises(TrackingError, match=r"process 1 on elsewhere works on run .* has not ended within"):
            keyed.settled()
        return
    found = keyed.settled()
    assert found.info.status == "FAILED"
    assert "silent, and another call has taken over" in str(show_run(run.run_id, store).summary.failure)


def test_other_arguments_and_a_deleted_run_are_errors_until_the_job_starts_over(store, tmp_path):
    run = begun(store, tmp_path, "changed")
    end(run, "FAILED")
    with pytest.raises(InvalidArgumentError, match="epochs was 2 and is 3"):
        KeyedRuns(store, Job("changed"), {**ARGUMENTS, "epochs": 3}).settled()
    assert keyed_in(store, "changed", takeover=True, from_start=True).settled() is None
    assert keyed_in(store, "changed").settled() is None  # the run has lost the key
    with pytest.raises(RunNotResumableError, match="was started over in another run"):
        count_attempt(run, "changed")
    deleted = begun(store, tmp_path, "changed")
    assert deleted.run_id != run.run_id
    end(deleted, "FAILED")
    open_client(store).delete_run(deleted.run_id)
    with pytest.raises(InvalidArgumentError, match=f"run {deleted.run_id} of job 'changed' was deleted in MLflow"):
        keyed_in(store, "changed").settled()
    assert keyed_in(store, "changed", takeover=True, from_start=True).settled() is None
