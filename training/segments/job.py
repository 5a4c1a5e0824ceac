"""The training job that every rank gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...tracking.runs import RunReference
from ..checkpoints.warm_start import WarmStart
from ..configuration.experiment import ExperimentConfig
from ..configuration.sections import Optimizations
from ..feed.feed import DeltaFeed
from ..feed.read_options import image_size_of
from ..tasks.task import Task
from ..trials.entrypoint import EntryPoint
from ..trials.metrics import Goal
from .schedule import Schedule


@dataclass(frozen=True)
class TrainingJob:
    """The training job that every rank gets: an experiment, and what is not configuration.

    Attributes:
        config: The experiment of a single training, resolved: with table version, image size and class names.
        entrypoint: The Trial.
        training_feed: Rows to train on.
        validation_feed: Rows to validate on; None if there is none.
        folder: Where rank 0 writes checkpoints.
        run: The MLflow run of the job.
        replicas: Devices of each process that share its batches.
        validations: More steps to validate after, such as those at which a search compares trials.
        warm_start: The model whose weights the training starts with; rank 0 reads it.
        reports_progress: Whether rank 0 reports its step to the driver, about once a second.
        asks_to_count: Whether rank 0 asks the driver at the end of training if it needs the task's counts: the
            confusion matrix needs another read of the validation rows, and a search shows only that of its best trial.
            Without it they are always computed.
        imports: Modules that ranks import first, while the launcher starts them.
    """

    config: ExperimentConfig
    entrypoint: EntryPoint
    training_feed: DeltaFeed
    validation_feed: DeltaFeed | None
    folder: Path
    run: RunReference
    replicas: int = 1
    validations: frozenset[int] = frozenset()
    warm_start: WarmStart | None = None
    reports_progress: bool = False
    asks_to_count: bool = False
    imports: tuple[str, ...] = field(default=("lakelens.training.distributed",))

    @property
    def task(self) -> Task:
        """The task of the labels."""
        return self.config.make_task()

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the images that the model takes."""
        return image_size_of(self.config.data.image_size or ())

    @property
    def global_batch_size(self) -> int:
        """Images per step over all ranks."""
        return self.config.global_batch_size

    @property
    def seed(self) -> int:
        """Seed of weights, order and augmentation."""
        return self.config.reproducibility.experiment_seed

    @property
    def goal(self) -> Goal:
        """Which validation is the best one."""
        return self.config.goal

    @property
    def hyperparameters(self) -> Mapping[str, Any]:
        """The hyperparameters of the Trial."""
        return self.config.trial_hyperparameters

    @property
    def optimizations(self) -> Optimizations:
        """How gradients are computed and combined."""
        return self.config.optimizations

    def schedule(self) -> Schedule:
        """Lays out the training's steps."""
        an_epoch = self.training_feed.steps_per_epoch(self.global_batch_size)
        return Schedule.of(self.config, an_epoch, self.validations)
