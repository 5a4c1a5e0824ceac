"""The evaluators, by the names of their tasks."""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import ModelMismatchError
from ...training.checkpoints.references import ModelRef
from ...training.tasks.classification import Classification
from ...training.tasks.detection import Detection
from ...training.tasks.registry import task_of
from .classification import ClassificationEvaluator
from .detection import DetectionEvaluator
from .evaluator import Evaluator

EVALUATORS: Mapping[str, type[Evaluator]] = {
    Classification.name: ClassificationEvaluator,
    Detection.name: DetectionEvaluator,
}


def evaluator_of(model: ModelRef, before: ModelRef | None = None) -> type[Evaluator]:
    """Finds the evaluator of a model, and of the model that it is compared with."""
    task = task_of(model.checkpoint).name
    other = task if before is None else task_of(before.checkpoint).name
    if before is not None and other != task:
        raise ModelMismatchError(
            f"{model.uri} is a model of task {task} and {before.uri} one of {other}; compare models of one task"
        )
    return EVALUATORS[task]
