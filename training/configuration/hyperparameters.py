"""Hyperparameters as an experiment file writes them: plain values, or a space to draw from; any nesting.

The keys are Determined's (https://docs.determined.ai, "Hyperparameters"): `type` const, categorical, double, int or
log; bounds of `log` are exponents of `base`; `count` is the number of grid points.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from .rules import rule_of

GLOBAL_BATCH_SIZE = "global_batch_size"
DEFAULT_BATCH_SIZE = 64


class _Space(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Const(_Space):
    """One value."""

    type: Literal["const"] = Field(description="`const`.")
    val: Any = Field(description="The value.")


class Categorical(_Space):
    """One of the listed values, each as likely as the others."""

    type: Literal["categorical"] = Field(description="`categorical`.")
    vals: list[Any] = Field(min_length=1, description="The values.")


class Int(_Space):
    """A whole number; both ends included."""

    type: Literal["int"] = Field(description="`int`.")
    minval: int = Field(description="Smallest value.")
    maxval: int = Field(description="Largest value.")
    count: int | None = Field(None, ge=1, description="Points of a grid search.")

    @model_validator(mode="after")
    def _is_ordered(self) -> Int:
        _require_ordered(self.minval, self.maxval)
        return self


class Double(_Space):
    """A number between two bounds, uniformly."""

    type: Literal["double"] = Field(description="`double`.")
    minval: float = Field(description="Lower bound.")
    maxval: float = Field(description="Upper bound.")
    count: int | None = Field(None, ge=1, description="Points of a grid search.")

    @model_validator(mode="after")
    def _is_ordered(self) -> Double:
        _require_ordered(self.minval, self.maxval)
        return self


class Log(_Space):
    """`base` to a power that is drawn uniformly: `{base: 10, minval: -4, maxval: -1}` is 0.0001 to 0.1."""

    type: Literal["log"] = Field(description="`log`.")
    base: float = Field(10.0, gt=0, description="The base.")
    minval: float = Field(description="Smallest exponent.")
    maxval: float = Field(description="Largest exponent.")
    count: int | None = Field(None, ge=1, description="Points of a grid search.")

    @model_validator(mode="after")
    def _is_ordered(self) -> Log:
        if self.base == 1:
            raise ValueError("base is 1, whose powers are all 1; 10 and 2 are usual")
        _require_ordered(self.minval, self.maxval)
        return self


Leaf = Annotated[Const | Categorical | Int | Double | Log, Field(discriminator="type")]
KINDS: Mapping[str, type[BaseModel]] = {
    "const": Const,
    "categorical": Categorical,
    "int": Int,
    "double": Double,
    "log": Log,
}
LEAF: TypeAdapter[Const | Categorical | Int | Double | Log] = TypeAdapter(Leaf)


def is_space(value: Any) -> bool:
    """Tells whether a mapping describes a space rather than nested hyperparameters: it has the key `type`."""
    return isinstance(value, Mapping) and "type" in value


def leaves(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields the path and the value (plain, or a space) of every hyperparameter, nested ones included."""
    for name, value in values.items():
        if isinstance(value, Mapping) and not is_space(value):
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name), value


def constants(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces each `const` by its value.

    Raises:
        ValueError: If a hyperparameter is a space to draw from; names it.
    """
    plain: dict[str, Any] = {}
    for name, value in values.items():
        if is_space(value):
            leaf = LEAF.validate_python(value)
            if not isinstance(leaf, Const):
                raise ValueError(
                    f"hyperparameters.{name} is a space of type {leaf.type}; a single training needs one value"
                )
            plain[name] = leaf.val
        else:
            plain[name] = constants(value) if isinstance(value, Mapping) else value
    return plain


def _require_ordered(minval: float, maxval: float) -> None:
    if not math.isfinite(minval) or not math.isfinite(maxval):
        raise ValueError("minval and maxval must be finite")
    if minval > maxval:
        raise ValueError(f"minval {minval} is above maxval {maxval}")


class HyperparameterError(ValueError):
    """Raised when a hyperparameter is neither a value nor a space that can be drawn from.

    Attributes:
        path: Its keys, from the top of `hyperparameters`.
        value: What was given.
    """

    def __init__(self, path: tuple[str, ...], value: Any, rule: str) -> None:
        super().__init__(rule)
        self.path = path
        self.value = value


def check_leaves(values: Mapping[str, Any]) -> None:
    """Checks every hyperparameter.

    Raises:
        HyperparameterError: For the first one that cannot be drawn; names its path.
    """
    for path, value in leaves(values):
        dotted = next((name for name in path if "." in name or not name), None)
        if dotted is not None:
            raise HyperparameterError(
                path, value, f"the name {dotted!r} is empty or has a dot, which separates nested names"
            )
        if is_space(value):
            _check_space(path, value)
        if path == (GLOBAL_BATCH_SIZE,):
            _check_batch_size(path, value)


def _check_space(path: tuple[str, ...], value: Mapping[str, Any]) -> None:
    try:
        LEAF.validate_python(value)
    except ValidationError as error:
        found = error.errors()[0]
        keys = tuple(str(key) for key in found["loc"] if key not in KINDS)
        raise HyperparameterError((*path, *keys), value, rule_of(found, _keys_of(value))) from None


def _check_batch_size(path: tuple[str, ...], value: Any) -> None:
    sizes = [value]
    if is_space(value):
        space = LEAF.validate_python(value)
        if isinstance(space, (Double, Log)):
            raise HyperparameterError(
                path, value, "a batch size is a whole number: choose type const, categorical or int"
            )
        sizes = (
            space.vals if isinstance(space, Categorical) else [space.val if isinstance(space, Const) else space.minval]
        )
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise HyperparameterError(path, size, "the global batch size is a whole number of at least 1")


def _keys_of(value: Mapping[str, Any]) -> list[str]:
    kind = KINDS.get(str(value.get("type")))
    return list(kind.model_fields) if kind is not None else []
