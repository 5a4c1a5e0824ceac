"""What the keys of an experiment mean for one trial: lengths in steps, number of ranks, what is kept."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import ConfigurationError, NotSupportedError
from ..checkpoints.retention import Retention
from ..configuration.experiment import CheckpointStorage, ExperimentConfig, Optimizations, Resources, require_single
from ..configuration.hyperparameters import GLOBAL_BATCH_SIZE, constants
from ..configuration.lengths import Length

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Lengths:
    """The lengths of a trial.

    Attributes:
        steps: Steps in all.
        epochs: Epochs that are complete or begun then.
        validation_period: Steps between validations.
        checkpoint_period: Steps between checkpoints for restarts; None for none.
    """

    steps: int
    epochs: int
    validation_period: int
    checkpoint_period: int | None

    @classmethod
    def of(cls, config: ExperimentConfig, steps_per_epoch: int) -> Lengths:
        """Converts the config's lengths to steps.

        Raises:
            ConfigurationError: If a period is longer than the training.
        """
        size = config.global_batch_size

        def steps_of(length: Length) -> int:
            return length.steps(batch_size=size, steps_per_epoch=steps_per_epoch)

        longest = config.searcher.max_length
        steps = steps_of(longest)
        for name in ("min_validation_period", "min_checkpoint_period"):
            period: Length | None = getattr(config, name)
            # The default, an epoch, is no demand.
            if period is not None and name in config.model_fields_set and steps_of(period) > steps:
                raise ConfigurationError(
                    f"{name} ({period}) is {steps_of(period)} steps and searcher.max_length ({longest}) is {steps}; "
                    "it would never be reached"
                )
        written = config.min_checkpoint_period
        return cls(
            steps=steps,
            epochs=-(-steps // steps_per_epoch),
            validation_period=steps_of(config.min_validation_period),
            checkpoint_period=None if written is None else steps_of(written),
        )


def require_trainable(config: ExperimentConfig) -> None:
    """Checks that a config describes one training, of the kinds that exist.

    Raises:
        ConfigurationError: If its searcher runs many.
        NotSupportedError: If it asks for what does not exist yet; names the key.
    """
    require_single(config, config.name or "experiment")
    stopping = config.early_stopping
    missing = {
        "optimizations": config.optimizations != Optimizations(),
        "perform_initial_validation": config.perform_initial_validation,
        "continue_from": config.continue_from is not None,
        "warm_start": config.warm_start is not None,
        "early_stopping.restore_best_weights": stopping is not None and stopping.restore_best_weights,
        "resources.strategy": config.resources.strategy == "mirrored",
    }
    for key, asked in missing.items():
        if asked:
            raise NotSupportedError(f"{key}: this version does not do that yet; remove the key")


def hyperparameters_of(config: ExperimentConfig) -> dict[str, Any]:
    """Gives the hyperparameters that a Trial may ask for."""
    values = constants(config.hyperparameters)
    values.pop(GLOBAL_BATCH_SIZE, None)
    return values


def retention_of(storage: CheckpointStorage) -> Retention:
    """Gives the rules that say which checkpoints are kept."""
    return Retention(storage.save_experiment_best, storage.save_trial_best, storage.save_trial_latest)


def ranks_of(resources: Resources, spark: SparkSession | None) -> int:
    """Decides where ranks run, as HorovodRunner counts them: negative on the driver, positive as Spark tasks.

    Args:
        resources: The keys.
        spark: A session that was given.
    """
    slots = resources.slots_per_trial
    if resources.strategy == "horovod_cluster":
        return slots
    if resources.strategy in ("single", "horovod_local"):
        return -slots
    if slots == 1:
        return -1
    if spark is not None and not spark.sparkContext.master.startswith("local["):
        logger.info("strategy auto: horovod_cluster, because a Spark session with executors was given")
        return slots
    logger.info("strategy auto: horovod_local, %d processes on this machine", slots)
    return -slots
