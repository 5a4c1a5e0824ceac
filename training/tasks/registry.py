"""The tasks, by the names that experiments and checkpoints give them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ...errors import CheckpointError
from ..checkpoints.checkpoint import Checkpoint
from .classification import Classification
from .detection import Detection
from .task import Task

TASKS: Mapping[str, type[Task]] = {kind.name: kind for kind in (Classification, Detection)}
# Of experiments without a task, and of checkpoints that other code wrote without one.
DEFAULT_TASK = Classification.name


def task_of(checkpoint: Checkpoint) -> Task:
    """Returns the task that a checkpoint's model was trained for, with its class names."""
    name = checkpoint.metadata.get("task", {}).get("name", DEFAULT_TASK)
    if name not in TASKS:
        raise CheckpointError(
            f"{checkpoint.path}: the model's task is {name!r}; this lakelens has {', '.join(TASKS)}. Use the lakelens "
            "that wrote it"
        )
    return TASKS[name](checkpoint.class_names or ())


def task_of_columns(columns: Collection[str]) -> type[Task] | None:
    """Finds the task whose predictions a table holds, by its columns; None if it is not one of `TASKS`."""
    return next((kind for kind in TASKS.values() if kind.prediction_columns.keys() <= set(columns)), None)
