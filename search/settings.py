"""The two sections of an experiment that define a search, read and checked by the models of the experiment file."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..errors import ConfigurationError
from ..training.configuration.experiment import ExperimentConfig
from ..training.configuration.lengths import Length
from ..training.configuration.problems import configuration_error
from ..training.configuration.searcher import SearcherConfig
from ..training.configuration.space import Hyperparameters, Space
from ..training.configuration.yaml_file import Document


class SearcherSettings(SearcherConfig):
    """The `searcher` section, in which name, metric and length are required."""

    name: Literal["single", "random", "grid", "adaptive_asha"]
    metric: str = Field(min_length=1)
    max_length: Length

    @model_validator(mode="after")
    def _has_a_direction(self) -> SearcherSettings:
        self.goal  # noqa: B018  # raises for a metric whose direction is not known
        return self

    @property
    def minimized(self) -> bool:
        """Whether a smaller value of the metric is better."""
        return self.goal.mode == "min"


class Sections(BaseModel):
    """The sections `searcher` and `hyperparameters`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    searcher: SearcherSettings
    hyperparameters: Hyperparameters


def searcher_section(config: ExperimentConfig) -> dict[str, Any]:
    """Gives the `searcher` section of an experiment with its metric and direction written out."""
    goal = config.goal
    return {**config.searcher.model_dump(), "metric": goal.metric, "smaller_is_better": goal.mode == "min"}


def require_space(config: ExperimentConfig) -> None:
    """Checks that the trials of a search can differ."""
    if not any(leaf.varies for _, leaf in Space.read(config.hyperparameters).leaves()):
        known = ", ".join(config.hyperparameters) or "no hyperparameter"
        raise ConfigurationError(
            f"hyperparameters: nothing to search, each has one value ({known}), so all trials would be equal; "
            "`lakelens train` trains once. Write a space, as "
            "learning_rate: {type: log, base: 10, minval: -4, maxval: -1} or "
            "filters: {type: categorical, vals: [8, 16, 32]}"
        )


def read_sections(searcher_config: Any, hyperparameters: Any) -> Sections:
    """Reads both sections; None stands for no hyperparameters."""
    given = {"searcher": searcher_config, "hyperparameters": {} if hyperparameters is None else hyperparameters}
    try:
        return Sections.model_validate(given)
    except ValidationError as error:
        raise configuration_error(Sections, Document("config", given), error) from None
