"""Makes searchers, from an experiment's two sections or from a snapshot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..errors import InvalidArgumentError
from ..options import whole_number
from ..training.configuration.rules import shown
from .searchers.base import SNAPSHOT_FORMAT, Definition, SearchMethod
from .searchers.grid import GridSearcher
from .searchers.random import RandomSearcher
from .searchers.single import SingleSearcher
from .searchers.tournament import TournamentSearcher

_SEARCHERS: dict[str, type[SearchMethod]] = {
    "single": SingleSearcher,
    "random": RandomSearcher,
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


def restore_searcher(state: Mapping[str, Any]) -> SearchMethod:
    """Restores a searcher from a snapshot; it continues exactly as the original would have.

    Args:
        state: What `SearchMethod.snapshot` returned, before or after JSON.

    Raises:
        InvalidArgumentError: If it is not a snapshot, or one of another format.
    """
    if not isinstance(state, Mapping) or state.get("format") != SNAPSHOT_FORMAT:
        found = state.get("format") if isinstance(state, Mapping) else state
        raise InvalidArgumentError(f"state.format={shown(found)}: it must be a snapshot of format {SNAPSHOT_FORMAT}")
    searcher = create_searcher(state["searcher"], json.loads(state["hyperparameters"]), state["seed"])
    searcher.restore(state)
    return searcher
