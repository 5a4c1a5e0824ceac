"""Rules of requests to running trainings; the obedience of a training is tested with its interruption."""

from __future__ import annotations

import pytest

from lakelens.errors import InvalidArgumentError
from lakelens.tracking.requests import ask
from lakelens.tracking.runs import tracked_run

pytestmark = pytest.mark.system


def test_a_run_of_a_search_is_not_asked_by_itself(store):
    with (
        tracked_run(store, "lakelens", tags={"lakelens.search": "grid"}) as run,
        pytest.raises(InvalidArgumentError, match=rf"run {run.run_id} belongs to a search"),
    ):
        ask(run.run_id, "pause", store)


def test_a_store_that_is_not_there_cannot_be_asked(tmp_path):
    with pytest.raises(InvalidArgumentError, match="there is no MLflow store at"):
        ask("r1", "pause", f"sqlite:///{tmp_path}/nowhere.db")
