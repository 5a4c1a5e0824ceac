"""Makes searchers from an experiment's two sections, and previews what a search will do, before anything runs."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..errors import ConfigurationError
from ..options import whole_number
from ..training.configuration.space import Space
from .brackets import Bracket, plan_brackets
from .searchers.base import Definition, SearchMethod
from .searchers.fixed_length import FixedLengthSearcher, Grid, GridSearcher
from .searchers.successive_halving import TournamentSearcher
from .settings import read_sections

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


def preview(searcher_config: Any, hyperparameters: Any = None) -> dict[int, int]:
    """Computes how many trials end at which length, if none fails.

    For `adaptive_asha` these are the numbers of a synchronous search; an asynchronous one promotes a few more trials
    when good ones report late.

    Args:
        searcher_config: The `searcher` section.
        hyperparameters: The `hyperparameters` section; a grid needs it.

    Returns:
        Number of trials by length in the searcher's unit, shortest first.

    Raises:
        ConfigurationError: If a key is unknown, missing or breaks its rule.
    """
    sections = read_sections(searcher_config, hyperparameters)
    settings, longest = sections.searcher, sections.searcher.max_length.amount
    if settings.name == "grid":
        if hyperparameters is None:
            raise ConfigurationError(
                "hyperparameters: missing; the size of a grid is that of its hyperparameters' values"
            )
        return {longest: Grid(Space.read(sections.hyperparameters)).size}
    if settings.name != "adaptive_asha":
        return {longest: settings.max_trials}
    ends: Counter[int] = Counter()
    for bracket in plan_brackets(settings):
        ends += _ends(bracket)
    return dict(sorted(ends.items()))


def _ends(bracket: Bracket) -> Counter[int]:
    ends: Counter[int] = Counter()
    running = bracket.trials
    for length in bracket.lengths[:-1]:
        kept = max(bracket.kept(running), 1)
        ends[length] += running - kept
        running = kept
    ends[bracket.lengths[-1]] += running
    return ends
