"""The training job that every rank gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...tracking.runs import RunReference
from ..checkpoints.retention import Retention
from ..checkpoints.warm_start import WarmStart
from ..feed.feed import DeltaFeed
from ..tasks.task import Task
from ..trials.entrypoint import EntryPoint
from ..trials.metrics import Goal
from .decisions import Policy, Rules
from .optimizations import OptimizationRules
from .schedule import Schedule


@dataclass(frozen=True)
class TrainingJob:
    """The training job that every rank gets.

    Attributes:
        entrypoint: The Trial.
        training_feed: Rows to train on.
        validation_feed: Rows to validate on; None if there is none.
        hyperparameters: The user's values.
        task: The task of the labels.
        image_size: Height and width of the images that the model takes.
        batch_size: Images per step over all ranks.
        epochs: At most.
        seed: Of weights, order and augmentation.
        goal: Which validation is the best one.
        patience: Validations without improvement after which training ends; None trains all epochs.
        folder: Where rank 0 writes checkpoints.
        run: The MLflow run of the job.
        steps: Steps in all; None trains all epochs.
        validation_period: Steps between validations; None is an epoch.
        validations: More steps to validate after, such as those at which a search compares trials.
        checkpoint_period: Steps between checkpoints for restarts, in addition to those of `checkpoint_policy`.
        checkpoint_policy: At which validations a checkpoint is written.
        retention: Which checkpoints are kept.
        min_delta: Smallest change of the metric that counts as an improvement for `patience`.
        replicas: Devices of each process that share its batches.
        optimizations: How gradients are computed and combined.
        initial_validation: Whether to validate before the first step too.
        restore_best: Whether to restore the best weights when training ends.
        feed_options: Options of `DeltaFeed.as_dataset`, in addition to the task's.
        warm_start: The model whose weights the training starts with; rank 0 reads it.
        reports_progress: Whether rank 0 reports its step to the driver, about once a second.
        asks_to_count: Whether rank 0 asks the driver at the end of training if it needs the task's counts: the
            confusion matrix needs another read of the validation rows, and a search shows only that of its best trial.
            Without it they are always computed.
        imports: Modules that ranks import first, while the launcher starts them.
    """

    entrypoint: EntryPoint
    training_feed: DeltaFeed
    validation_feed: DeltaFeed | None
    hyperparameters: Mapping[str, Any]
    task: Task
    image_size: tuple[int, int]
    batch_size: int
    epochs: int
    seed: int
    goal: Goal
    patience: int | None
    folder: Path
    run: RunReference
    steps: int | None = None
    validation_period: int | None = None
    validations: frozenset[int] = frozenset()
    checkpoint_period: int | None = None
    checkpoint_policy: Policy = "best"
    retention: Retention = field(default_factory=Retention)
    min_delta: float = 0.0
    replicas: int = 1
    optimizations: OptimizationRules = field(default_factory=OptimizationRules)
    initial_validation: bool = False
    restore_best: bool = False
    feed_options: Mapping[str, Any] = field(default_factory=dict)
    warm_start: WarmStart | None = None
    reports_progress: bool = False
    asks_to_count: bool = False
    imports: tuple[str, ...] = field(default=("lakelens.training.distributed",))

    @property
    def rules(self) -> Rules:
        """The rules that decide whether the trial continues and what it keeps."""
        return Rules(self.goal, self.patience, self.min_delta, self.checkpoint_policy, self.retention)

    def schedule(self) -> Schedule:
        """Lays out the training's steps."""
        an_epoch = self.training_feed.steps_per_epoch(self.batch_size)
        return Schedule(
            an_epoch,
            self.steps or self.epochs * an_epoch,
            self.validation_period or an_epoch,
            self.checkpoint_period,
            self.validations,
        )
