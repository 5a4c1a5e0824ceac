"""Makes searchers from an experiment's two sections."""

from __future__ import annotations

from typing import Any

from ..options import whole_number
from .searchers.base import Definition, SearchMethod
from .searchers.fixed_length import FixedLengthSearcher
from .searchers.grid import GridSearcher
from .searchers.tournament import TournamentSearcher

_SEARCHERS: dict[str, type[SearchMethod]] = {
    "single": FixedLengthSearcher,
    "random": FixedLengthSearcher,
    "grid": GridSearcher,
    "adaptive_asha": TournamentSearcher,
}


def create_searcher(searcher_config: Any, hyperparameters: Any, seed: int = 0) -> SearchMethod:
    """Makes a searcher that has not started.

    Args:
        searcher_config: The `searcher` section of an experiment.
        hyperparameters: The `hyperparameters` section.
        seed: Of the draws.

    Raises:
        ConfigurationError: If a key is unknown, missing or breaks its rule.
        InvalidArgumentError: If the seed is not a whole number.
    """
    definition = Definition.read(searcher_config, hyperparameters, whole_number("seed", seed))
    return _SEARCHERS[definition.settings.name](definition)
