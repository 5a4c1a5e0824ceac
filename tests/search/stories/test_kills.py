"""A search that is killed, interrupted or told to pause goes on with the same trials and promotions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from child_processes import children_started_with, ending_with_this_process
from tracked_runs import tracked

from lakelens.errors import InvalidArgumentError
from lakelens.jobs.cli import main
from lakelens.search import resume
from lakelens.search.journal import read_events
from lakelens.search.running.run import search
from lakelens.tracking.run_listing import show_run
from lakelens.tracking.runs import open_client
from lakelens.training.trials.small_cnn import SmallCnn

pytestmark = [pytest.mark.tensorflow, pytest.mark.long]

SCRIPT = str(Path(__file__).parent / "search_script.py")
_WAIT_S = 120.0


@pytest.fixture
def one_slot(keys) -> dict[str, Any]:
    """On one slot the order of events is the same in each search."""
    keys["resources"] = {"max_slots": 1, "env": {"TF_NUM_INTRAOP_THREADS": "1"}}
    keys["searcher"] |= {"max_trials": 4, "max_length": {"epochs": 2}}
    return keys


def command(keys: dict[str, Any], **more: Any) -> list[str]:
    return [sys.executable, SCRIPT, json.dumps({"keys": keys, **more})]


def search_in_a_process(keys: dict[str, Any], **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(keys, **more), capture_output=True, text=True, timeout=280, check=False)


def journal_in(keys: dict[str, Any]) -> Path:
    (journal,) = Path(keys["checkpoint_storage"]["path"]).glob("*/journal")
    return journal


def last_entry(journal: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in max(journal.glob("*.jsonl")).read_text().splitlines()]


def decided(events: list[dict[str, Any]]) -> tuple[Any, ...]:
    """What trials a search has created, the metrics at the lengths that were asked for, and how trials have ended."""
    return (
        [(event["trial"], event["hyperparameters"]) for event in events if event["event"] == "created"],
        [(event["trial"], event["asked"], event["metric"]) for event in events if event.get("decides")],
        {event["trial"]: event["event"] for event in events if event["event"] in ("stopped", "completed")},
    )


# In the order in which they come on one slot. test_state.py kills after each entry; here ranks and runs are real.
KINDS = ("launched", "validated", "paused", "finished")


@pytest.mark.timeout(900)
def test_a_search_killed_at_four_kinds_of_events_ends_as_one_that_was_not(one_slot, tmp_path):
    one_slot["tracking"]["register_as"] = "tiny"
    whole = {**one_slot, "checkpoint_storage": {"path": str(tmp_path / "whole")}}
    first = search_in_a_process(whole)
    assert first.returncode == 0, first.stderr
    expected = read_events(journal_in(whole))
    assert {event["event"] for event in expected} > {*KINDS, "continued", "stopped", "completed"}
    one_slot["job"] = "nightly"
    for kind in KINDS:
        killed = search_in_a_process(one_slot, kill_after=kind)
        assert killed.returncode == -signal.SIGKILL, f"{kind}: {killed.stderr}"
        run_id = journal_in(one_slot).parent.name
        assert kind in [event["event"] for event in last_entry(journal_in(one_slot))]
    resumed, again = (search_in_a_process(one_slot) for _ in range(2))
    assert resumed.returncode == again.returncode == 0, resumed.stderr
    assert again.stdout.splitlines()[-1] == resumed.stdout.splitlines()[-1]  # with its trials
    assert show_run("nightly", one_slot["tracking"]["uri"]).summary.attempt == 5
    assert decided(read_events(journal_in(one_slot))) == decided(expected)
    with pytest.raises(InvalidArgumentError, match=r"entrypoint was .* and is .*SmallCnn"):
        search(one_slot, entrypoint=SmallCnn)
    found, unkilled = (json.loads(process.stdout.splitlines()[-1]) for process in (resumed, first))
    assert (found["best_trial"], found["value"]) == (unkilled["best_trial"], unkilled["value"])
    client = open_client(one_slot["tracking"]["uri"])
    assert client.get_model_version("tiny", "2").run_id == run_id
    children = client.search_runs(["1"], f"tags.`mlflow.parentRunId` = '{run_id}'")
    assert sorted(run.data.tags["lakelens.trial"] for run in children) == ["0", "1", "2", "3"]
    assert {run.info.status for run in children} == {"FINISHED"}
    assert not [run for run in children if "lakelens.failure" in run.data.tags]
    for run in children:
        steps = [point.step for point in client.get_metric_history(run.info.run_id, "val_loss")]
        assert steps == list(range(1, 1 + int(run.data.tags["lakelens.trial.length"])))


@pytest.fixture
def started(one_slot) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts searches that are ended when the test is."""
    processes: list[subprocess.Popen[str]] = []

    def start(**more: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            ending_with_this_process(command(one_slot, **more)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def events_so_far(keys: dict[str, Any], kind: str) -> int:
    entries = list(Path(keys["checkpoint_storage"]["path"]).glob("*/journal/*.jsonl"))
    return sum(event["event"] == kind for event in read_events(entries[0].parent)) if entries else 0


def test_the_first_interrupt_pauses_all_trials_and_says_how_to_resume(one_slot, started):
    one_slot["resources"]["env"]["STEP_S"] = "0.3"
    process = started()
    wait_for(lambda: events_so_far(one_slot, "validated") >= 1)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=_WAIT_S)
    run_id = journal_in(one_slot).parent.name
    assert f"lakelens search resume {run_id} resumes it" in said
    events = read_events(journal_in(one_slot))
    assert events[-1]["event"] == "paused"
    assert run_id in tracked(one_slot["data"]["table"])[0]  # a later resume reads this version
    client = open_client(one_slot["tracking"]["uri"])
    assert client.get_run(run_id).info.status == "KILLED"
    assert client.get_run(next(event["run_id"] for event in events if "run_id" in event)).info.status == "SCHEDULED"
    assert main(["search", "resume", run_id, "--tracking-uri", one_slot["tracking"]["uri"]]) == 0
    assert client.get_run(run_id).info.status == "FINISHED"


def test_another_process_pauses_a_search_lets_it_go_on_and_ends_it(one_slot, started):
    one_slot["searcher"]["max_trials"] = 40  # it is ended long before
    one_slot["resources"]["env"]["STEP_S"] = "0.3"
    process = started()
    wait_for(lambda: events_so_far(one_slot, "validated") >= 1)
    run_id, beside = journal_in(one_slot).parent.name, ["--tracking-uri", one_slot["tracking"]["uri"]]
    with pytest.raises(InvalidArgumentError, match="is RUNNING"):
        resume(run_id, tracking_uri=one_slot["tracking"]["uri"])
    assert main(["search", "pause", run_id, *beside]) == 0
    # A rank keeps its process from segment to segment; a search that is held has none.
    wait_for(lambda: not children_started_with("lakelens-rank=", process.pid))
    launched = events_so_far(one_slot, "launched")
    time.sleep(2)
    assert events_so_far(one_slot, "launched") == launched
    assert main(["search", "resume", run_id, *beside]) == 0
    wait_for(lambda: events_so_far(one_slot, "launched") > launched)
    assert main(["search", "stop", run_id, *beside]) == 0
    out, said = process.communicate(timeout=_WAIT_S)
    assert process.returncode == 0, said
    events = read_events(journal_in(one_slot))
    best = json.loads(out.splitlines()[-1])["best_trial"]
    assert (events[-1]["event"], events[-1]["best_trial"]) == ("finished", best)
    assert any(event["event"] == "given_up" for event in events)
