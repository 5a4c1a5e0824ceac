"""The plan of a training or a search, before it has a run: its experiment, resolved, its rows and its ranks."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...spark.session import SessionSource
from ...tracking.runs import RunReference
from ..checkpoints.warm_start import WarmStart
from ..configuration.experiment import ExperimentConfig
from ..configuration.searcher import SINGLE
from ..configuration.space import largest_global_batch_size
from ..segments.job import Schedule, TrainingJob
from ..trials.entrypoint import EntryPoint
from .run_folder import checkpoint_root
from .strategies import Strategy
from .trial_data import TrialData

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExperimentPlan:
    """An experiment that can be started."""

    # The experiment, with absolute paths, the table's version, image size, class names and strategy
    config: ExperimentConfig
    entrypoint: EntryPoint  # The Trial
    data: TrialData  # The rows
    strategy: Strategy  # Where the ranks of a trial run

    @classmethod
    def of(
        cls, config: ExperimentConfig, *, entrypoint: EntryPoint | None = None, spark: SessionSource | None = None
    ) -> ExperimentPlan:
        """Resolves an experiment: table, version, splits, lengths and ranks."""
        entry = entrypoint or EntryPoint.parse(config.entrypoint)
        root = checkpoint_root(config.checkpoint_storage.path)
        data = TrialData.open(config, spark)
        strategy = Strategy.of(config, spark, entry.framework)
        update = {
            "entrypoint": entry.name,
            "data": data.resolved(config.data),
            "checkpoint_storage": config.checkpoint_storage.model_copy(update={"path": str(root)}),
            "resources": strategy.resolved(config.resources),
        }
        plan = cls(config.model_copy(update=update), entry, data, strategy)
        for warning in plan.warnings:
            logger.warning(warning)
        if config.searcher.name == SINGLE:
            plan.schedule  # noqa: B018  # raises before anything starts
        return plan

    @property
    def ranks(self) -> int:
        """Number of ranks: negative on the driver, positive as Spark tasks, 0 for every slot."""
        return self.strategy.np

    @property
    def slots_per_trial(self) -> int:
        """Slots that a trial takes, all at once."""
        return abs(self.strategy.np) * self.strategy.replicas

    @property
    def root(self) -> Path:
        """The folder of the runs' folders."""
        return Path(self.config.checkpoint_storage.path)

    @property
    def schedule(self) -> Schedule:
        """The steps of a single training."""
        return Schedule.of(self.config, self.data.training.steps_per_epoch(self.config.global_batch_size))

    @property
    def ranks_recorded(self) -> int | str:
        """Number of ranks, as the run's parameter shows it."""
        return abs(self.ranks) or "every slot"

    @property
    def warnings(self) -> list[str]:
        """Probable mistakes that do not prevent training."""
        return self.data.warnings(largest_global_batch_size(self.config.hyperparameters))

    @property
    def params(self) -> dict[str, object]:
        """MLflow parameters of a single training's run, in addition to the hyperparameters."""
        config, stopping, size = self.config, self.config.early_stopping, self.data.image_size
        return {
            "epochs": self.schedule.epochs,
            "global_batch_size": config.global_batch_size,
            "ranks": self.ranks_recorded,
            "strategy": self.strategy.name,
            "seed": config.reproducibility.experiment_seed,
            "patience": stopping.patience if stopping is not None else None,
            "train_split": config.data.train_split,
            "validation_split": config.data.validation_split,
            "image_size": f"{size[0]}x{size[1]}",
        }

    def job(self, run: RunReference, warm_start: WarmStart | None = None, **more: Any) -> TrainingJob:
        """Returns the training job of every rank."""
        return TrainingJob(
            config=self.config,
            entrypoint=self.entrypoint,
            training_feed=self.data.training,
            validation_feed=self.data.validation,
            folder=self.root / run.run_id,
            run=run,
            replicas=self.strategy.replicas,
            warm_start=warm_start,
            **more,
        )
