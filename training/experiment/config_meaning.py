"""Converts the keys of an experiment for one trial: lengths in steps, hyperparameters, retention of checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import ConfigurationError
from ..checkpoints.retention import Retention
from ..configuration.experiment import CheckpointStorage, ExperimentConfig
from ..configuration.lengths import Length
from ..configuration.space import GLOBAL_BATCH_SIZE, constants


@dataclass(frozen=True)
class Lengths:
    """The lengths of a trial.

    Attributes:
        steps: Steps in all.
        epochs: Epochs that are complete or begun at its end.
        validation_period: Steps between validations.
        checkpoint_period: Steps between checkpoints for restarts; None if there is none.
    """

    steps: int
    epochs: int
    validation_period: int
    checkpoint_period: int | None

    @classmethod
    def of(cls, config: ExperimentConfig, steps_per_epoch: int) -> Lengths:
        """Converts the config's lengths to steps.

        Raises:
            ConfigurationError: If a period, the warm-up or a group of aggregated steps is longer than the training.
        """
        size = config.global_batch_size

        def steps_of(length: Length) -> int:
            return length.steps(batch_size=size, steps_per_epoch=steps_per_epoch)

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
            steps=steps,
            epochs=-(-steps // steps_per_epoch),
            validation_period=steps_of(config.min_validation_period),
            checkpoint_period=None if written is None else steps_of(written),
        )


def hyperparameters_of(config: ExperimentConfig) -> dict[str, Any]:
    """Returns the hyperparameters of a Trial."""
    values = constants(config.hyperparameters)
    values.pop(GLOBAL_BATCH_SIZE, None)
    return values


def retention_of(storage: CheckpointStorage) -> Retention:
    """Returns the retention rules of checkpoints."""
    return Retention(storage.save_experiment_best, storage.save_trial_best, storage.save_trial_latest)
