"""The runs and folders of a search's trials."""

from __future__ import annotations

from typing import Any

import pytest

from lakelens.search.journal import TrialState
from lakelens.search.running.trial_runs import TrialRuns, plan_search
from lakelens.tracking.requests import ChildRuns
from lakelens.tracking.runs import RunReference
from lakelens.training.configuration.experiment import ExperimentConfig

pytestmark = pytest.mark.unit


def test_a_trial_that_another_thread_has_just_created_has_no_checkpoints_to_remove(keys: dict[str, Any]) -> None:
    keys["checkpoint_storage"]["save_experiment_best"] = 1
    plan = plan_search(ExperimentConfig.read(keys))
    parent = RunReference(keys["tracking"]["uri"], "0", "search", "here")
    with TrialRuns(plan, ChildRuns(parent), {}, [(1, 2)]) as runs:
        runs.prune([TrialState(number=4, hyperparameters={}, asked=1)])
        assert runs.folders == {}
