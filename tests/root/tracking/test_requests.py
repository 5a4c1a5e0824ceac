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


@pytest.mark.parametrize(
    ("request_", "action", "silent_s", "words"),
    [
        (ask, "pause", 0, "run {run} belongs to a search"),
        (ask_search, "resume", 0, "the search {run} is not paused"),
        (ask_search, "resume", 400, "no sign of life for 40"),
    ],
    ids=["a trial by itself", "not paused", "silent"],
)
def test_what_cannot_obey_is_not_asked(store, request_, action, silent_s, words):
    with tracked_run(store, "lakelens", tags={"lakelens.search": "grid"}) as run:
        if silent_s:
            old = Heartbeat(Process("elsewhere", "another machine", 1, 0.0), time.time() - silent_s)
            open_client(store).set_tag(run.run_id, HEARTBEAT_TAG, str(old))
        with pytest.raises(InvalidArgumentError, match=words.format(run=run.run_id)):
            request_(run.run_id, action, store)


def test_a_store_that_is_not_there_cannot_be_asked(tmp_path):
    with pytest.raises(InvalidArgumentError, match="there is no MLflow store at"):
        ask("r1", "pause", f"sqlite:///{tmp_path}/nowhere.db")
