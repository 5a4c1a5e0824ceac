"""Hyperparameters as an experiment file describes them: one model for each kind of space to draw from. Pure.

The keys are Determined's (https://docs.determined.ai, "Hyperparameters"): `type` const, categorical, double, int or
log; bounds of `log` are exponents of `base`; `count` is the number of grid points. See `space` for what is drawn.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Leaf(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Const(_Leaf):
    """One value."""

    type: Literal["const"] = Field(description="`const`.")
    val: Any = Field(description="The value.")

    @property
    def varies(self) -> bool:
        """Whether it can have several values."""
        return False

    def at(self, _: int) -> Any:
        """The value."""
        return copy.deepcopy(self.val)


class Categorical(_Leaf):
    """One of the listed values, each as likely as the others."""

    type: Literal["categorical"] = Field(description="`categorical`.")
    vals: list[Any] = Field(min_length=1, description="The values.")

    @property
    def varies(self) -> bool:
        """Whether it can have several values."""
        return any(value != self.vals[0] for value in self.vals)

    def at(self, draw: int) -> Any:
        """The value at a draw of 64 bits."""
        return copy.deepcopy(self.vals[draw * len(self.vals) >> 64])


class _Range(_Leaf):
    type: str
    minval: float
    maxval: float
    count: int | None = Field(None, ge=1, description="Points of a grid search.")

    @property
    def varies(self) -> bool:
        """Whether it can have several values."""
        return self.minval < self.maxval

    @model_validator(mode="after")
    def _is_ordered(self) -> _Range:
        if not abs(self.minval) < math.inf or not abs(self.maxval) < math.inf:
            raise ValueError("minval and maxval must be finite")
        if self.minval > self.maxval:
            raise ValueError(f"minval {self.minval} is above maxval {self.maxval}")
        return self


class Int(_Range):
    """A whole number; both ends included."""

    type: Literal["int"] = Field(description="`int`.")
    minval: int = Field(description="Smallest value.")
    maxval: int = Field(description="Largest value.")

    def at(self, draw: int) -> int:
        """The value at a draw of 64 bits."""
        return self.minval + (draw * (self.maxval - self.minval + 1) >> 64)


class Double(_Range):
    """A number between two bounds, uniformly."""

    type: Literal["double"] = Field(description="`double`.")
    minval: float = Field(description="Lower bound.")
    maxval: float = Field(description="Upper bound.")

    def at(self, draw: int) -> float:
        """The value at a draw of 64 bits."""
        return between(self.minval, self.maxval, _share(draw))


class Log(_Range):
    """`base` to a power that is drawn uniformly: `{base: 10, minval: -4, maxval: -1}` is 0.0001 to 0.1."""

    type: Literal["log"] = Field(description="`log`.")
    base: float = Field(10.0, gt=0, description="The base.")
    minval: float = Field(description="Smallest exponent.")
    maxval: float = Field(description="Largest exponent.")

    @model_validator(mode="after")
    def _has_powers(self) -> Log:
        if self.base == 1:
            raise ValueError("base is 1, whose powers are all 1; 10 and 2 are usual")
        for exponent in (self.minval, self.maxval):
            try:
                usable = self.power(exponent) > 0
            except OverflowError:
                usable = False
            if not usable:
                raise ValueError(
                    f"{self.base:g} to the power of {exponent:g} does not fit into a double; the bounds of log "
                    "are exponents"
                )
        return self

    def at(self, draw: int) -> float:
        """The value at a draw of 64 bits."""
        return self.power(between(self.minval, self.maxval, _share(draw)))

    def power(self, exponent: float) -> float:
        """The base to the power of an exponent."""
        return math.pow(self.base, exponent)


Leaf = Const | Categorical | Int | Double | Log
KINDS: Mapping[str, type[BaseModel]] = {
    "const": Const,
    "categorical": Categorical,
    "int": Int,
    "double": Double,
    "log": Log,
}


def between(low: float, high: float, share: float) -> float:
    """The number at a share (0 to 1) of the way between two bounds; never outside them."""
    return min(max(low * (1.0 - share) + high * share, low), high)


def _share(draw: int) -> float:
    return (draw >> 11) / 2.0**53
