"""Rules of the decisions about a trial: plain questions in, plain answers out."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

import pytest

from lakelens.training.configuration.experiment import ExperimentConfig
from lakelens.training.segments.decisions import Answer, Decisions, Progress
from lakelens.training.trials.metrics import Goal

pytestmark = pytest.mark.unit

LOSS = Goal("val_loss", "min")


def rules_of(goal: Goal = LOSS, stopping: dict[str, Any] | None = None, **keys: Any) -> ExperimentConfig:
    searcher = {"metric": goal.metric, "smaller_is_better": goal.mode == "min"}
    return ExperimentConfig.read({"data": {"table": "t"}, "searcher": searcher, "early_stopping": stopping, **keys})


def answers(rules: ExperimentConfig, values: list[float], decisions: Decisions | None = None) -> list[Answer]:
    decisions = decisions or Decisions(rules)
    first = decisions.progress.validations
    return [
        Answer.of(
            decisions.answer(
                {"validation": {"step": 10 * (first + n), "epoch": first + n, "metrics": {rules.goal.metric: value}}}
            )
        )
        for n, value in enumerate(values, 1)
    ]


@pytest.mark.parametrize(
    ("goal", "min_delta", "values", "stops_at"),
    [
        (LOSS, None, [1.0, 2.0, math.nan, 3.0], None),
        (LOSS, 0.0, [1.0, 0.9, 0.9, 0.95, 0.8], 4),
        (LOSS, 0.0, [1.0, 1.1, 0.9, 1.0, 0.8, 0.7], None),
        (LOSS, 0.0, [math.nan, math.nan], 2),
        (LOSS, 0.2, [1.0, 0.9, 0.85], 3),
        (LOSS, 0.2, [1.0, 0.9, 0.75, 0.7, 0.6], 5),
        (Goal("val_accuracy", "max"), 0.1, [0.5, 0.55, 0.61, 0.65, 0.69], 5),
    ],
)
def test_patience_counts_validations_without_an_improvement_of_min_delta(goal, min_delta, values, stops_at):
    stopping = None if min_delta is None else {"patience": 2, "min_delta": min_delta}
    found = [answer.action for answer in answers(rules_of(goal, stopping), values)]
    assert (found.index("stop") + 1 if "stop" in found else None) == stops_at


def test_the_best_is_the_best_value_also_where_it_is_no_improvement_for_patience():
    progress = answers(rules_of(LOSS, {"patience": 9, "min_delta": 0.5}), [1.0, 0.9, 0.95])[-1].progress
    assert (progress.best, progress.best_step, progress.best_epoch, progress.waited) == (0.9, 20, 2, 2)
    assert progress.best_metrics == {"val_loss": 0.9}


@pytest.mark.parametrize(
    ("policy", "written"),
    [("best", [True, False, True, False]), ("all", [True] * 4), ("none", [False] * 4)],
)
def test_the_policy_says_at_which_validations_a_checkpoint_is_written(policy, written):
    found = answers(rules_of(checkpoint_policy=policy), [1.0, 1.0, 0.5, math.nan])
    assert [answer.checkpoint for answer in found] == written


@pytest.mark.parametrize(
    ("storage", "written", "removed"),
    [
        ({}, [("a", 0.5), ("b", 0.7), ("paused", None), ("d", 0.4)], [[], [], ["b"], ["a", "paused"]]),
        # What a trial goes on from stays though no rule keeps it.
        ({"save_trial_latest": 0}, [("best", 0.5), ("paused", None), ("next", 0.7)], [[], [], ["paused"]]),
    ],
)
def test_a_checkpoint_is_removed_only_when_the_one_that_takes_its_place_is_whole(storage, written, removed):
    decisions = Decisions(rules_of(checkpoint_storage=storage))
    for step, ((name, metric), gone) in enumerate(zip(written, removed, strict=True)):
        assert decisions.answer({"checkpoint": {"name": name, "step": step, "metric": metric}})["remove"] == gone


def test_decisions_that_go_on_from_their_progress_are_those_of_an_uninterrupted_trial():
    rules, values = rules_of(LOSS, {"patience": 3, "min_delta": 0.1}), [1.0, 0.95, 0.7, 0.65, math.inf, 0.62, 0.5]
    whole = answers(rules, values)
    for cut in range(len(values)):
        before = Decisions(rules)
        answers(rules, values[:cut], before)
        progress = Progress.of(json.loads(json.dumps(asdict(before.progress))))
        assert answers(rules, values[cut:], Decisions(rules, progress)) == whole[cut:]
