"""Searches whose trials all train to the whole length, and the points of a grid, by number; no list of all is made."""

from __future__ import annotations

import copy
import math
from fractions import Fraction
from typing import Any

from ...errors import ConfigurationError
from ...training.configuration.hyperparameters import Categorical, Const, Double, Int, Leaf, Log, between
from ...training.configuration.space import KeyPath, Space
from .base import Definition, SearchMethod


class FixedLengthSearcher(SearchMethod):
    """Creates trials, a limited number at a time, and trains each to the end: `single` one, `random` drawn ones."""

    def __init__(self, definition: Definition, total: int | None = None) -> None:
        super().__init__(definition)
        self.total = total = total or self.settings.max_trials
        self.replaces_invalid = self.settings.name == "random"
        self._at_once = self.settings.max_concurrent_trials or total
        self._running = 0
        self._ended = 0

    @property
    def finished(self) -> bool:
        """Whether all trials have ended."""
        return self._ended == self.total

    def _start(self) -> None:
        self._fill()

    def _validated(self, trial: int, loss: float) -> None:
        self._trials.stop(trial)
        self._end()

    def _failed(self, trial: int) -> None:
        self._end()

    def _invalid(self, trial: int) -> None:
        if self.replaces_invalid:
            self._running -= 1
            self._fill()
        else:
            self._end()

    def _end(self) -> None:
        self._running -= 1
        self._ended += 1
        self._fill()

    def _fill(self) -> None:
        while self._running < self._at_once and self._running + self._ended < self.total:
            self._trials.create(0, self.settings.max_length.amount)
            self._running += 1


class GridSearcher(FixedLengthSearcher):
    """Trains one trial for each point of the grid, in its order; a point that is invalid is not replaced."""

    def __init__(self, definition: Definition) -> None:
        self._grid = Grid(definition.space)
        super().__init__(definition, total=self._grid.size)

    def hyperparameters(self, trial: int) -> dict[str, Any]:
        """The point of the grid with the trial's number."""
        return self._grid.point(trial)


class Grid:
    """The cartesian product of all values: sorted by name at each level, and the last one changes fastest."""

    def __init__(self, space: Space, path: str = "hyperparameters") -> None:
        """Counts the points."""
        self._space = space
        self._axes: list[tuple[KeyPath, Leaf, int]] = [
            (place, leaf, _points(f"{path}.{'.'.join(place)}", leaf)) for place, leaf in space.leaves()
        ]
        self.size = math.prod(points for _, _, points in self._axes)

    def point(self, number: int) -> dict[str, Any]:
        """Gives the values of one point, from 0 to `size` - 1."""
        values: dict[KeyPath, Any] = {}
        for path, leaf, points in reversed(self._axes):
            number, index = divmod(number, points)
            values[path] = _value(leaf, index, points)
        return self._space.build(lambda path, _: values[path])


def _points(path: str, leaf: Leaf) -> int:
    if isinstance(leaf, Const):
        return 1
    if isinstance(leaf, Categorical):
        return len(leaf.vals)
    if leaf.count is None:
        raise ConfigurationError(
            f"{path}.count: missing; a grid needs the number of values of each int, double and log"
        )
    return min(leaf.count, leaf.maxval - leaf.minval + 1) if isinstance(leaf, Int) else leaf.count


def _value(leaf: Leaf, index: int, points: int) -> Any:
    """The value at an index; a single point lies in the middle of its range."""
    if isinstance(leaf, Const):
        return leaf.at(0)
    if isinstance(leaf, Categorical):
        return copy.deepcopy(leaf.vals[index])
    share = Fraction(1, 2) if points == 1 else Fraction(index, points - 1)
    if isinstance(leaf, Int):
        return round_half_away(leaf.minval + share * (leaf.maxval - leaf.minval))
    exponent_or_value = _linear(leaf, share)
    return leaf.power(exponent_or_value) if isinstance(leaf, Log) else exponent_or_value


def _linear(leaf: Double | Log, share: Fraction) -> float:
    """`minval + index * (maxval - minval) / (count - 1)`, exact at both ends."""
    if share in (0, 1):
        return leaf.maxval if share else leaf.minval
    width = leaf.maxval - leaf.minval
    if math.isinf(width):
        return between(leaf.minval, leaf.maxval, float(share))
    return leaf.minval + share.numerator * width / share.denominator


def round_half_away(value: Fraction) -> int:
    """Rounds halves away from zero, as Determined does; Python's `round` takes halves to the even number."""
    magnitude = math.floor(abs(value) + Fraction(1, 2))
    return magnitude if value >= 0 else -magnitude
