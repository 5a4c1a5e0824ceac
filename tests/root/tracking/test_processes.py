"""Runs of several processes at once, and of those that are killed; the processes are forks of one that loads MLflow."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lakelens.tracking.heartbeat import FAILURE_TAG
from lakelens.tracking.run_listing import show_run
from lakelens.tracking.runs import open_client, tracked_run

pytestmark = pytest.mark.system

PROCESSES = 3
SCRIPT = """
import json, multiprocessing, os, signal, sys
from pathlib import Path
import mlflow.store.tracking.sqlalchemy_store
from lakelens.errors import RunNotResumableError
from lakelens.job_keys import Job
from lakelens.tracking.keyed_runs import KeyedRuns
from lakelens.tracking.runs import tracked_run

folder, processes = Path(sys.argv[1]), int(sys.argv[2])
store = f"sqlite:///{folder}/new/mlflow.db"

def work(number, together):
    together.wait(200)
    with tracked_run(store, "first"):
        pass
    keyed = KeyedRuns(store, Job("at once"), {})
    found = keyed.settled()
    together.wait(200)
    try:
        claimed = keyed.claimed(found, folder, "keyed", None)
    except RunNotResumableError:
        claimed = None
    together.wait(200)
    (folder / f"{number}.json").write_text(json.dumps(claimed))
    if number == 0:
        with tracked_run(store, "killed"):
            os.kill(os.getpid(), signal.SIGKILL)

forks = multiprocessing.get_context("fork")
together = forks.Barrier(processes)
works = [forks.Process(target=work, args=(number, together)) for number in range(processes)]
for one in works:
    one.start()
for one in works:
    one.join()
print([one.exitcode for one in works])
"""


def test_processes_share_a_new_store_one_of_them_gets_the_run_of_a_job_and_a_killed_ones_run_fails(tmp_path):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), str(PROCESSES)]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=240)
    assert (done.stdout, done.stderr) == (f"{[-9] + [0] * (PROCESSES - 1)}\n", "")
    store = f"sqlite:///{tmp_path}/new/mlflow.db"
    client = open_client(store)
    assert len(client.search_runs([client.get_experiment_by_name("first").experiment_id])) == PROCESSES
    claimed = [json.loads((tmp_path / f"{number}.json").read_text()) for number in range(PROCESSES)]
    assert [show_run("at once", store).summary.run_id] == [run_id for run_id in claimed if run_id is not None]
    (lost,) = client.search_runs([client.get_experiment_by_name("killed").experiment_id])
    assert lost.info.status == "RUNNING"
    with tracked_run(store, "killed") as first, tracked_run(store, "killed") as second:
        assert first.experiment_id == second.experiment_id
        found = client.get_run(lost.info.run_id)
        assert found.info.status == "FAILED"
        assert found.info.end_time >= found.info.start_time - 60_000
        assert re.search(r"process \d+ on .*, which kept this run, is gone", found.data.tags[FAILURE_TAG])
        assert client.get_run(first.run_id).info.status == "RUNNING"
