"""Trials drawn at random, all trained to the end."""

from __future__ import annotations

from .base import Definition
from .fixed_length import FixedLengthSearcher


class RandomSearcher(FixedLengthSearcher):
    """Trains `max_trials` random trials to the end."""

    replaces_invalid = True

    def __init__(self, definition: Definition) -> None:
        super().__init__(definition, total=definition.settings.max_trials)
