"""Rules of requests to running trainings; the obedience of a training is tested with its interruption."""

from __future__ import annotations

import time

import pytest

from lakelens.errors import InvalidArgumentError
from lakelens.liveness import Process
from lakelens.tracking.heartbeat import HEARTBEAT_TAG, Heartbeat
from lakelens.tracking.requests import ask, ask_search
from lakelens.tracking.runs import open_client, tracked_run

pytestmark = pytest.mark.system


def test_a_run_of_a_search_is_not_asked_by_itself(store):
    with (
        tracked_run(store, "lakelens", tags={"lakelens.search": "grid"}) as run,
        pytest.raises(InvalidArgumentError, match=rf"run {run.run_id} belongs to a search"),
    ):
        ask(run.run_id, "pause", store)


def test_a_search_that_is_not_paused_is_not_asked_to_resume(store):
    with (
        tracked_run(store, "lakelens", tags={"lakelens.search": "grid"}) as run,
        pytest.raises(InvalidArgumentError, match=rf"the search {run.run_id} is not paused"),
    ):
        ask_search(run.run_id, "resume", store)


def test_a_search_whose_process_is_silent_is_not_asked(store):
    with tracked_run(store, "lakelens", tags={"lakelens.search": "grid"}) as run:
        old = Heartbeat(Process("elsewhere", "another machine", 1, 0.0), time.time() - 400)
        open_client(store).set_tag(run.run_id, HEARTBEAT_TAG, str(old))
        with pytest.raises(InvalidArgumentError, match="no sign of life for 40"):
            ask_search(run.run_id, "resume", store)


def test_a_store_that_is_not_there_cannot_be_asked(tmp_path):
    with pytest.raises(InvalidArgumentError, match="there is no MLflow store at"):
        ask("r1", "pause", f"sqlite:///{tmp_path}/nowhere.db")
