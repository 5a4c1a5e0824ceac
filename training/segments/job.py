"""The training job that every rank gets, and its boundaries as step numbers, equal on every rank. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ...errors import ConfigurationError, InvalidArgumentError
from ...tracking.runs import RunReference
from ..checkpoints.warm_start import WarmStart
from ..configuration.experiment import ExperimentConfig
from ..configuration.lengths import Length
from ..feed.feed import DeltaFeed
from ..trials.entrypoint import EntryPoint


@dataclass(frozen=True)
class Schedule:
    """At which steps a training validates, ends an epoch, writes a checkpoint and ends; step 0 is its start.

    Boundaries do not depend on the end of a segment: a continued training has those of an uninterrupted one.
    """

    steps_per_epoch: int  # Steps of an epoch
    length: int  # Steps of the training
    validation_period: int  # Steps between validations
    checkpoint_period: int | None = None  # Steps between checkpoints for restarts; None if there is none
    validations: frozenset[int] = frozenset()  # More steps to validate after

    @classmethod
    def of(cls, config: ExperimentConfig, steps_per_epoch: int, validations: frozenset[int] = frozenset()) -> Schedule:
        """Converts the lengths of a single training to steps."""
        size = config.global_batch_size

        def steps_of(length: Length) -> int:
            return length.steps(global_batch_size=size, steps_per_epoch=steps_per_epoch)

        longest = config.searcher.max_length
        steps = steps_of(longest)
        for name in ("min_validation_period", "min_checkpoint_period"):
            period: Length | None = getattr(config, name)
            # The default, an epoch, may be longer than the training.
            if period is not None and name in config.model_fields_set and steps_of(period) > steps:
                raise ConfigurationError(
                    f"{name} ({period}) is {steps_of(period)} steps and searcher.max_length ({longest}) is {steps}; "
                    "it would never be reached"
                )
        rules = config.optimizations
        if rules.warmup_epochs * steps_per_epoch > steps:
            raise ConfigurationError(
                f"optimizations.warmup_epochs ({rules.warmup_epochs:g}) is {rules.warmup_epochs * steps_per_epoch:g} "
                f"steps and searcher.max_length ({longest}) is {steps}; the learning rate would never reach its value"
            )
        if rules.aggregation_frequency > steps:
            raise ConfigurationError(
                f"optimizations.aggregation_frequency is {rules.aggregation_frequency} steps and searcher.max_length "
                f"({longest}) is {steps}; no gradient would ever be applied"
            )
        written = config.min_checkpoint_period
        return cls(
            steps_per_epoch,
            steps,
            steps_of(config.min_validation_period),
            None if written is None else steps_of(written),
            validations,
        )

    def __post_init__(self) -> None:
        for name in ("steps_per_epoch", "length", "validation_period", "checkpoint_period"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidArgumentError(f"{name} is {value} steps; it must be at least 1")

    @property
    def epochs(self) -> int:
        """Epochs that are complete or begun at the end of the training."""
        return -(-self.length // self.steps_per_epoch)

    @property
    def counts_epochs(self) -> bool:
        """Whether every validation is at the end of an epoch; records then count epochs, else steps."""
        boundaries = (self.validation_period, self.length, *self.validations)
        return all(step % self.steps_per_epoch == 0 for step in boundaries)

    def epoch(self, step: int) -> int:
        """Counts the complete epochs after a step."""
        return step // self.steps_per_epoch

    def ends_epoch(self, step: int) -> bool:
        """Returns whether an epoch is complete after a step; the next one begins there."""
        return step % self.steps_per_epoch == 0

    def validates(self, step: int) -> bool:
        """Returns whether the model is validated after a step."""
        return step % self.validation_period == 0 or step == self.length or step in self.validations

    def writes(self, step: int) -> bool:
        """Returns whether a checkpoint for restarts is due after a step."""
        return self.checkpoint_period is not None and step % self.checkpoint_period == 0

    def recorded_as(self, step: int) -> int:
        """Returns the number under which a step's metrics are recorded: its epoch, from 1, or the step itself."""
        return -(-step // self.steps_per_epoch) if self.counts_epochs else step


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
