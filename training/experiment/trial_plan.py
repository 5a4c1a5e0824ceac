"""The plan of one trial, before it has a run: rows, lengths and ranks."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ...spark.session import SessionSource
from ...tracking.runs import RunReference
from ..configuration.experiment import ExperimentConfig, require_single
from ..segments.job import TrainingJob
from ..segments.optimizations import OptimizationRules
from ..trials.entrypoint import EntryPoint
from .config_meaning import Lengths, hyperparameters_of, retention_of
from .run_folder import checkpoint_root
from .strategies import Strategy
from .trial_data import TrialData

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrialPlan:
    """A trial that can be opened.

    Attributes:
        config: The experiment of this one trial.
        entrypoint: The Trial.
        data: The rows.
        lengths: The lengths in steps.
        strategy: Where its ranks run.
        root: The folder of the runs' folders.
    """

    config: ExperimentConfig
    entrypoint: EntryPoint
    data: TrialData
    lengths: Lengths
    strategy: Strategy
    root: Path

    @classmethod
    def of(
        cls,
        config: ExperimentConfig,
        *,
        entrypoint: EntryPoint | None = None,
        version: int | str | datetime | None = None,
        np: int | None = None,
        spark: SessionSource | None = None,
    ) -> TrialPlan:
        """Resolves a config: table, version, splits, lengths and ranks.

        Args:
            config: The experiment.
            entrypoint: Replaces the config's, for a class that a file cannot name.
            version: Replaces the config's, for a time.
            np: Ranks as `train` counts them, instead of the config's resources.
            spark: The session, for catalog names and executors.

        Raises:
            ConfigurationError: If the config asks for several trials.
            UsageError: If table, version, split or entry point does not exist.
        """
        require_single(config, config.name or "experiment")
        entry = entrypoint or EntryPoint.parse(config.entrypoint)
        root = checkpoint_root(config.checkpoint_storage.path)
        data = TrialData.open(config.data, config.reproducibility.experiment_seed, version=version, spark=spark)
        for warning in data.warnings(config.global_batch_size):
            logger.warning(warning)
        lengths = Lengths.of(config, data.training.steps_per_epoch(config.global_batch_size))
        return cls(config, entry, data, lengths, Strategy.of(config, spark, np), root)

    @property
    def ranks(self) -> int:
        """Number of ranks: negative on the driver, positive as Spark tasks, 0 for every slot."""
        return self.strategy.np

    @property
    def params(self) -> dict[str, object]:
        """MLflow parameters of the run, in addition to the hyperparameters."""
        rules, data = self.config.early_stopping, self.data
        return {
            "epochs": self.lengths.epochs,
            "batch_size": self.config.global_batch_size,
            "np": self.ranks,
            "strategy": self.strategy.name,
            "seed": self.config.reproducibility.experiment_seed,
            "patience": rules.patience if rules is not None else None,
            "train_split": self.config.data.train_split,
            "validation_split": self.config.data.validation_split,
            "image_size": f"{data.image_size[0]}x{data.image_size[1]}",
        }

    def job(self, run: RunReference, folder: Path) -> TrainingJob:
        """Returns the training job of every rank.

        Args:
            run: Its run.
            folder: Where rank 0 writes checkpoints.
        """
        config, data, lengths, rules = self.config, self.data, self.lengths, self.config.early_stopping
        return TrainingJob(
            entrypoint=self.entrypoint,
            training_feed=data.training,
            validation_feed=data.validation,
            hyperparameters=hyperparameters_of(config),
            task=data.task,
            image_size=data.image_size,
            batch_size=config.global_batch_size,
            epochs=lengths.epochs,
            seed=config.reproducibility.experiment_seed,
            goal=config.goal,
            patience=rules.patience if rules is not None else None,
            min_delta=rules.min_delta if rules is not None else 0.0,
            folder=folder,
            run=run,
            steps=lengths.steps,
            validation_period=lengths.validation_period,
            checkpoint_period=lengths.checkpoint_period,
            checkpoint_policy=config.checkpoint_policy,
            retention=retention_of(config.checkpoint_storage),
            replicas=self.strategy.replicas,
            optimizations=OptimizationRules(**config.optimizations.model_dump()),
            initial_validation=config.perform_initial_validation,
            restore_best=rules is not None and rules.restore_best_weights,
            feed_options={
                name: getattr(config.data, name) for name in ("bad_rows", "read_timeout_s", "cache", "cache_bytes")
            },
        )
