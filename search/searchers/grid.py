"""Every point of a grid, trained to the end."""

from __future__ import annotations

from typing import Any

from ..grid import Grid
from .base import Definition
from .fixed_length import FixedLengthSearcher


class GridSearcher(FixedLengthSearcher):
    """Trains one trial for each point of the grid, in its order; a point that is invalid is not replaced."""

    def __init__(self, definition: Definition) -> None:
        self._grid = Grid(definition.space)
        super().__init__(definition, total=self._grid.size)

    def hyperparameters(self, trial: int) -> dict[str, Any]:
        """The point of the grid with the trial's number."""
        return self._grid.point(trial)
