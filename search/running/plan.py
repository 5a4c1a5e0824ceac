"""What a search runs: its experiment, resolved, its searcher, and the experiment of each trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...errors import ConfigurationError
from ...spark.session import SessionSource
from ...training.configuration.experiment import ExperimentConfig
from ...training.configuration.lengths import Length
from ...training.configuration.searcher import SINGLE, SearcherConfig
from ...training.experiment.experiment_plan import ExperimentPlan
from ...training.runner.spark.preflight import active_connect_session, require_classic
from ...training.trials.entrypoint import EntryPoint
from ..create import create_searcher
from ..searchers.base import SearchMethod
from ..settings import require_space, searcher_section


def plan_search(
    config: ExperimentConfig, *, entrypoint: EntryPoint | None = None, spark: SessionSource | None = None
) -> ExperimentPlan:
    """Resolves the experiment of a search; its rows are opened once for all trials."""
    if config.continue_from is not None:
        raise ConfigurationError("continue_from trains one run further; a search begins its trials: remove the key")
    require_space(config)
    searcher_of(config)  # finds an unusable space before the session opens and a run begins
    plan = ExperimentPlan.of(config, entrypoint=entrypoint, spark=spark)
    if plan.ranks >= 0:
        require_classic(active_connect_session() if spark is None or callable(spark) else spark, "a search")
    return plan


def searcher_of(config: ExperimentConfig) -> SearchMethod:
    """Makes the searcher, which has not started."""
    return create_searcher(searcher_section(config), config.hyperparameters, config.reproducibility.experiment_seed)


@dataclass(frozen=True)
class PlannedTrial:
    """One trial of a search, and what a length is in its steps."""

    plan: ExperimentPlan  # What it trains
    steps_per_epoch: int  # Steps of an epoch

    @classmethod
    def of(cls, search: ExperimentPlan, hyperparameters: Mapping[str, Any]) -> PlannedTrial:
        """Plans one trial."""
        searcher = search.config.searcher
        single = SearcherConfig(
            name=SINGLE,
            metric=searcher.metric,
            smaller_is_better=searcher.smaller_is_better,
            max_length=searcher.max_length,
        )
        update = {"hyperparameters": dict(hyperparameters), "searcher": single}
        plan = replace(search, config=search.config.model_copy(update=update))
        return cls(plan, plan.schedule.steps_per_epoch)

    @property
    def unit(self) -> str:
        """Unit of the search's lengths."""
        return self.plan.config.searcher.max_length.unit

    def steps(self, length: int) -> int:
        """Converts a length to the step at which it is reached."""
        size = self.plan.config.global_batch_size
        return Length(**{self.unit: length}).steps(global_batch_size=size, steps_per_epoch=self.steps_per_epoch)

    def length(self, step: int) -> float:
        """Converts a step to the length that is reached there."""
        if self.unit == "epochs":
            return _whole(step / self.steps_per_epoch)
        return step if self.unit == "batches" else step * self.plan.config.global_batch_size


def _whole(value: float) -> float:
    return int(value) if value == int(value) else round(value, 6)
