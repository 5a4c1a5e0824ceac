"""The `searcher` section of an experiment. Its keys and defaults are those of Determined. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ...errors import InvalidArgumentError
from ..trials.metrics import Goal, near_metric
from .lengths import Length

SINGLE: Final = "single"
_NEEDS_MAX_TRIALS = ("random", "adaptive_asha")
# Which keys go with which name; `name`, `metric`, `smaller_is_better` and `max_length` go with all.
_KEYS: Mapping[str, tuple[str, ...]] = {
    SINGLE: (),
    "random": ("max_trials", "max_concurrent_trials"),
    "grid": ("max_concurrent_trials",),
    "adaptive_asha": (
        "max_trials",
        "max_concurrent_trials",
        "mode",
        "divisor",
        "max_rungs",
        "bracket_rungs",
        "stop_once",
    ),
}


class SearcherConfig(BaseModel):
    """Which trials to run, for how long, and which metric decides."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Literal["single", "random", "grid", "adaptive_asha"] = Field(
        SINGLE, description="`single` trains once; the others are run by `lakelens search`."
    )
    metric: str | None = Field(
        None, min_length=1, description="Metric that decides; default: `val_loss` with validation, else `loss`."
    )
    smaller_is_better: bool | None = Field(
        None, description="Direction of the metric; needed unless lakelens knows the metric (loss, accuracy, auc, ...)."
    )
    max_length: Length = Field(default_factory=lambda: Length(epochs=10), description="Longest training of a trial.")
    max_trials: int = Field(1, ge=1, description="Trials in all; random and adaptive_asha need it.")
    max_concurrent_trials: int = Field(
        16,
        ge=0,
        description="Limit for concurrent trials, with at least one for each bracket; 0 derives it from the brackets.",
    )
    mode: Literal["aggressive", "standard", "conservative"] = Field(
        "standard", description="How early trials are stopped (adaptive_asha)."
    )
    divisor: float = Field(
        4.0, gt=1, allow_inf_nan=False, description="Share of trials that continue from each rung is 1/divisor."
    )
    max_rungs: int = Field(5, ge=1, description="Largest number of rungs (adaptive_asha).")
    bracket_rungs: list[Annotated[int, Field(ge=1)]] = Field(
        default_factory=list, description="Rungs of each bracket; overrides `mode`."
    )
    stop_once: bool = Field(
        False, description="true stops trials permanently; false pauses and promotes them (adaptive_asha)."
    )

    @property
    def goal(self) -> Goal:
        """The metric that decides, `val_loss` by default, and its direction."""
        metric, smaller = self.metric or "val_loss", self.smaller_is_better
        try:
            return Goal.of(metric, None if smaller is None else "min" if smaller else "max")
        except InvalidArgumentError:
            raise ValueError(
                f"searcher.metric {metric}{near_metric(metric)} does not imply whether smaller is better; set "
                "searcher.smaller_is_better"
            ) from None

    @model_validator(mode="before")
    @classmethod
    def _null_is_the_default(cls, values: Any) -> Any:
        return {key: value for key, value in values.items() if value is not None} if type(values) is dict else values

    @model_validator(mode="after")
    def _has_the_keys_of_its_name(self) -> SearcherConfig:
        mine = _KEYS[self.name]
        usual = SearcherConfig.model_construct()
        for key in _KEYS["adaptive_asha"]:
            # A key with its default value is allowed: a dumped config contains all keys.
            if key not in mine and getattr(self, key) != getattr(usual, key):
                raise ValueError(
                    f"{key} does not go with searcher {self.name} (which takes {', '.join(mine) or 'none of them'}); "
                    "remove it"
                )
        if self.name in _NEEDS_MAX_TRIALS and "max_trials" not in self.model_fields_set:
            raise ValueError(f"searcher {self.name} needs max_trials: how many trials it may run")
        return self
