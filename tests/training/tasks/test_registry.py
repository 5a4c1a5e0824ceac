"""Checkpoints name their task."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakelens.errors import CheckpointError
from lakelens.training.checkpoints.checkpoint import Checkpoint
from lakelens.training.tasks.classification import Classification
from lakelens.training.tasks.registry import TASKS, task_of, task_of_columns

pytestmark = pytest.mark.unit

LABELS = {"labels": {"0": "a", "1": "b"}}


@pytest.mark.parametrize("told", [{}, {"task": {"name": "classification", "values": "logits"}}])
def test_the_task_of_a_checkpoint_has_its_class_names(told):
    task = task_of(Checkpoint(Path("c"), "", {**LABELS, **told}))
    assert (type(task), task.class_names) == (Classification, ("a", "b"))


def test_a_checkpoint_of_an_unknown_task_is_refused():
    with pytest.raises(CheckpointError, match=r"c: the model's task is 'poses'; this lakelens has classification, det"):
        task_of(Checkpoint(Path("c"), "", {"task": {"name": "poses"}}))


def test_a_predictions_table_shows_its_task_by_its_columns():
    for kind in TASKS.values():
        assert task_of_columns(["path", *kind.prediction_columns, "error"]) is kind
    assert task_of_columns(["path", "prediction", "error"]) is None
    assert set(TASKS) == {"classification", "detection"}
