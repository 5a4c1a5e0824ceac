"""Decides, at each validation, whether a trial continues and what it keeps. Pure: JSON questions and answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from ..checkpoints.retention import CheckpointRecord, checkpoints_to_keep
from ..configuration.experiment import ExperimentConfig
from ..trials.metrics import Goal

Action = Literal["continue", "pause", "stop"]
Reason = Literal["completed", "paused", "stopped"]


@dataclass(frozen=True)
class Progress:
    """The progress of a trial."""

    validations: int = 0  # Number of validations
    best: float | None = None  # Best value of the goal's metric; None before the first finite one
    best_step: int = 0  # Its step
    best_epoch: int = 0  # Epochs complete or begun at that step
    best_metrics: Mapping[str, float] = field(default_factory=dict)  # All metrics of that validation
    reference: float | None = None  # The value with which the next validation is compared
    waited: int = 0  # Validations since the last improvement of at least `min_delta`

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Progress:
        """Reads its fields from JSON; a checkpoint keeps NaN and infinities, which JSON lacks, as their names."""
        metrics = {name: float(value) for name, value in values["best_metrics"].items()}
        floats = {name: None if values[name] is None else float(values[name]) for name in ("best", "reference")}
        return cls(**{**values, **floats, "best_metrics": metrics})


@dataclass(frozen=True)
class Answer:
    """The decision after a validation."""

    action: Action  # What all ranks do at this step
    checkpoint: bool  # Whether to write a checkpoint
    progress: Progress  # The trial's progress, including this validation

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Answer:
        """Reads the answer of `Decisions.answer` to a validation."""
        return cls(values["action"], values["checkpoint"], Progress.of(values["progress"]))


class Decisions:
    """The decisions about one trial."""

    def __init__(
        self, config: ExperimentConfig, progress: Progress | None = None, checkpoints: Iterable[CheckpointRecord] = ()
    ) -> None:
        self._config, self._goal = config, config.goal
        self.progress = progress or Progress()
        self._checkpoints = list(checkpoints)

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Answers a rank's question."""
        if "validation" in question:
            return asdict(self._validated(**question["validation"]))
        return {"remove": self._wrote(**question["checkpoint"])}

    def _validated(self, step: int, epoch: int, metrics: Mapping[str, float]) -> Answer:
        goal, stopping, before = self._goal, self._config.early_stopping, self.progress
        value = goal.value_in(metrics)
        after = replace(before, validations=before.validations + 1)
        is_best = goal.is_better(value, before.best)
        if is_best:
            after = replace(after, best=value, best_step=step, best_epoch=epoch, best_metrics=dict(metrics))
        if improves(goal, value, before.reference, 0.0 if stopping is None else stopping.min_delta):
            after = replace(after, reference=value, waited=0)
        else:
            after = replace(after, waited=before.waited + 1)
        self.progress = after
        stops = stopping is not None and after.waited >= stopping.patience
        policy = self._config.checkpoint_policy
        return Answer("stop" if stops else "continue", policy == "all" or (policy == "best" and is_best), after)

    def _wrote(self, name: str, step: int, metric: float | None) -> list[str]:
        self._checkpoints.append(CheckpointRecord(name, 0, step, metric))
        smaller, rules = self._goal.mode == "min", self._config.checkpoint_storage.retention.while_running()
        kept = checkpoints_to_keep(self._checkpoints, rules, smaller_is_better=smaller)
        removed = [record.name for record in self._checkpoints if record.name not in kept]
        self._checkpoints = [record for record in self._checkpoints if record.name in kept]
        return removed


def improves(goal: Goal, value: float, reference: float | None, min_delta: float) -> bool:
    """Returns whether a value is better than `reference` by more than `min_delta`, as Keras' EarlyStopping does."""
    if reference is None:
        return goal.is_better(value, None)
    return goal.is_better(value + min_delta if goal.mode == "min" else value - min_delta, reference)
