"""What a search runs: its experiment, its rows, where its trials run, and the experiment of each trial."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ConfigurationError
from ...spark.port import master_of
from ...spark.session import SessionSource, opened
from ...training.configuration.experiment import ExperimentConfig
from ...training.configuration.lengths import Length
from ...training.configuration.searcher import SINGLE, SearcherConfig
from ...training.configuration.space import largest_batch_size
from ...training.experiment.config_meaning import Lengths
from ...training.experiment.run_folder import checkpoint_root
from ...training.experiment.strategies import Strategy
from ...training.experiment.trial_data import TrialData
from ...training.experiment.trial_plan import TrialPlan
from ...training.trials.entrypoint import EntryPoint
from ..brackets import plan_brackets
from ..create import create_searcher
from ..searchers.base import SearchMethod
from ..settings import SearcherSettings, searcher_section

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SearchPlan:
    """A search that can be run.

    Attributes:
        config: Its experiment.
        entrypoint: The Trial.
        data: The rows, opened once for all trials.
        strategy: Where the ranks of a trial run.
        root: The folder of the runs' folders.
    """

    config: ExperimentConfig
    entrypoint: EntryPoint
    data: TrialData
    strategy: Strategy
    root: Path

    @classmethod
    def of(
        cls,
        config: ExperimentConfig,
        *,
        entrypoint: EntryPoint | None = None,
        np: int | None = None,
        spark: SessionSource | None = None,
    ) -> SearchPlan:
        """Resolves a config: table, version, splits and ranks.

        Args:
            config: The experiment.
            entrypoint: Replaces the config's, for a class that a file cannot name.
            np: Ranks of a trial, if a resumed search has recorded them.
            spark: The session, for catalog names and executors.

        Raises:
            ConfigurationError: If a key contradicts another.
            UsageError: If table, version, split or entry point does not exist.
        """
        if config.continue_from is not None:
            raise ConfigurationError("continue_from trains one run further; a search begins its trials: remove the key")
        entry = entrypoint or EntryPoint.parse(config.entrypoint)
        root = checkpoint_root(config.checkpoint_storage.path)
        _searcher_of(config)  # finds an unusable space before the session opens and a run begins
        data = TrialData.open(config.data, config.reproducibility.experiment_seed, spark=spark)
        for warning in data.warnings(largest_batch_size(config.hyperparameters)):
            logger.warning(warning)
        return cls(config, entry, data, _strategy_of(config, np, opened(spark)), root)

    @property
    def ranks(self) -> int:
        """Number of ranks of a trial: negative on the driver, positive as Spark tasks."""
        return self.strategy.np

    @property
    def slots_per_trial(self) -> int:
        """Slots that a trial takes, all at once."""
        return abs(self.strategy.np) * self.strategy.replicas

    def searcher(self) -> SearchMethod:
        """Makes the searcher, which has not started."""
        return _searcher_of(self.config)

    def trial(self, hyperparameters: Mapping[str, Any]) -> PlannedTrial:
        """Plans one trial.

        Args:
            hyperparameters: Those that were drawn for it.

        Raises:
            LakelensError: If they do not make a valid training, such as a period longer than the training.
        """
        config = _of_one_trial(self.config, hyperparameters)
        steps_per_epoch = self.data.training.steps_per_epoch(config.global_batch_size)
        lengths = Lengths.of(config, steps_per_epoch)
        plan = TrialPlan(config, self.entrypoint, self.data, lengths, self.strategy, self.root)
        return PlannedTrial(plan, config.searcher.max_length.unit, config.global_batch_size, steps_per_epoch)

    def rungs(self, settings: SearcherSettings) -> list[tuple[int, ...]]:
        """Lists the lengths of each bracket's rungs; those of other searchers have one."""
        if settings.name != "adaptive_asha":
            return [(settings.max_length.amount,)]
        return [bracket.lengths for bracket in plan_brackets(settings)]


@dataclass(frozen=True)
class PlannedTrial:
    """One trial of a search, and what a length is in its steps.

    Attributes:
        plan: What it trains.
        unit: Of the search's lengths.
        batch_size: Images per step.
        steps_per_epoch: Steps of an epoch.
    """

    plan: TrialPlan
    unit: str
    batch_size: int
    steps_per_epoch: int

    def steps(self, length: int) -> int:
        """Converts a length to the step at which it is reached."""
        return Length(**{self.unit: length}).steps(batch_size=self.batch_size, steps_per_epoch=self.steps_per_epoch)

    def length(self, step: int) -> float:
        """Converts a step to the length that is reached there."""
        if self.unit == "epochs":
            return _whole(step / self.steps_per_epoch)
        return step if self.unit == "batches" else step * self.batch_size


def _searcher_of(config: ExperimentConfig) -> SearchMethod:
    return create_searcher(searcher_section(config), config.hyperparameters, config.reproducibility.experiment_seed)


def _of_one_trial(config: ExperimentConfig, hyperparameters: Mapping[str, Any]) -> ExperimentConfig:
    searcher = config.searcher
    single = SearcherConfig(
        name=SINGLE,
        metric=searcher.metric,
        smaller_is_better=searcher.smaller_is_better,
        max_length=searcher.max_length,
    )
    return config.model_copy(update={"hyperparameters": dict(hyperparameters), "searcher": single})


def _whole(value: float) -> float:
    return int(value) if value == int(value) else round(value, 6)


def _strategy_of(config: ExperimentConfig, np: int | None, spark: Any) -> Strategy:
    """Decides where trials run: on executors if the session has some, even with one slot each."""
    resources = config.resources
    on_executors = spark is not None and not master_of(spark).startswith("local[")
    if np is None and resources.strategy == "auto" and on_executors:
        np = resources.slots_per_trial
    return Strategy.of(_of_one_trial(config, {}), spark, np)
