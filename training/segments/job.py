"""The training job that every rank gets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ...tracking.runs import RunReference
from ..checkpoints.warm_start import WarmStart
from ..configuration.experiment import ExperimentConfig
from ..feed.feed import DeltaFeed
from ..trials.entrypoint import EntryPoint
from .schedule import Schedule


@dataclass(frozen=True)
class TrainingJob:
    """The training job that every rank gets: an experiment, and what is not configuration."""

    # The experiment of a single training, resolved: with table version, image size, class names and strategy
    config: ExperimentConfig
    entrypoint: EntryPoint  # The Trial
    training_feed: DeltaFeed  # Rows to train on
    validation_feed: DeltaFeed | None  # Rows to validate on; None if there is none
    folder: Path  # Where rank 0 writes checkpoints
    run: RunReference  # The MLflow run of the job
    replicas: int = 1  # Devices of each process that share its batches
    # More steps to validate after, such as those at which a search compares trials
    validations: frozenset[int] = frozenset()
    warm_start: WarmStart | None = None  # The model whose weights the training starts with; rank 0 reads it
    reports_progress: bool = False  # Whether rank 0 reports its step to the driver, about once a second
    # Whether rank 0 asks the driver at the end of training if it needs the task's counts: the confusion matrix needs
    # another read of the validation rows, and a search shows only that of its best trial. Without it they are always
    # computed
    asks_to_count: bool = False

    @cached_property
    def schedule(self) -> Schedule:
        """The training's steps."""
        an_epoch = self.training_feed.steps_per_epoch(self.config.global_batch_size)
        return Schedule.of(self.config, an_epoch, self.validations)
