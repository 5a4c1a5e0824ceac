"""The space of an experiment's hyperparameters: plain values and spaces to draw from, in any nesting. Pure.

A draw depends on the seed, the trial's number and the hyperparameter's path alone: a new hyperparameter does not change
the draws of the others, and the order of events changes none. The number behind a draw is

    n = the first 8 bytes, big-endian, of SHA-256 of the JSON text `[seed,trial,["optimizer","learning_rate"]]`

without spaces and with non-ASCII characters escaped. A `double` is at u = (n >> 11) / 2**53 between its bounds, the
exponent of a `log` likewise; an `int` is `minval + (n * (maxval - minval + 1) >> 64)`; a `categorical` is
`vals[n * len(vals) >> 64]`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError

from ...options import near_miss
from ..trials.context import python_value
from .hyperparameters import KINDS, Categorical, Const, Int, Leaf
from .rules import rule_of

GLOBAL_BATCH_SIZE = "global_batch_size"
DEFAULT_BATCH_SIZE = 64
_ONLY_IN_LEAVES = ("val", "vals", "minval", "maxval")
_LEAF: TypeAdapter[Leaf] = TypeAdapter(Annotated[Leaf, Field(discriminator="type")])

KeyPath = tuple[str, ...]


class HyperparameterError(ValueError):
    """Raised when a hyperparameter is neither a value nor a space that can be drawn from."""

    def __init__(self, path: tuple[str | int, ...], value: Any, rule: str) -> None:
        super().__init__(rule)
        self.path = path  # Its keys, from the top of `hyperparameters`
        self.value = value


@dataclass(frozen=True)
class Space:
    """The hyperparameters of an experiment."""

    tree: Mapping[str, Any]  # For each name its leaf, or another tree

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Space:
        """Reads the `hyperparameters` section; a mapping with the key `type` is a leaf, any other a group."""
        tree = {name: _node((name,), value) for name, value in values.items()}
        if GLOBAL_BATCH_SIZE in tree:
            _check_batch_size(tree[GLOBAL_BATCH_SIZE])
        return cls(tree)

    def draw(self, seed: int, trial: int) -> dict[str, Any]:
        """Draws the values of one trial, nested as the space is."""
        return self.build(lambda path, leaf: leaf.at(0 if isinstance(leaf, Const) else _draw(seed, trial, path)))

    def build(self, value_of: Callable[[KeyPath, Leaf], Any]) -> dict[str, Any]:
        """Makes values nested as the space is, each by a function of the hyperparameter's path and leaf."""
        return _build(self.tree, (), value_of)

    def leaves(self) -> Iterator[tuple[KeyPath, Leaf]]:
        """Lists the path and leaf of every hyperparameter, sorted by name at each level."""
        return _leaves(self.tree, ())


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    Space.read(values)
    return values


Hyperparameters = Annotated[dict[str, Any], BeforeValidator(python_value), AfterValidator(_checked)]


def constants(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces each `const` by its value."""

    def value_of(path: KeyPath, leaf: Leaf) -> Any:
        if isinstance(leaf, Const):
            return leaf.at(0)
        raise ValueError(
            f"hyperparameters.{'.'.join(path)} is a space, and searcher single trains once: give it a value, or "
            "choose random, grid or adaptive_asha and run `lakelens search`"
        )

    return Space.read(values).build(value_of)


def largest_global_batch_size(values: Mapping[str, Any]) -> int:
    """Returns the largest global batch size that the `hyperparameters` section can give a trial."""
    leaf = Space.read(values).tree.get(GLOBAL_BATCH_SIZE, Const(type="const", val=DEFAULT_BATCH_SIZE))
    if isinstance(leaf, Int):
        return leaf.maxval
    return max(leaf.vals) if isinstance(leaf, Categorical) else int(leaf.val)


def _draw(seed: int, trial: int, path: KeyPath) -> int:
    text = f"[{seed},{trial},{_as_json(path)}]"
    return int.from_bytes(hashlib.sha256(text.encode("ascii")).digest()[:8], "big")


@lru_cache(maxsize=1024)
def _as_json(path: KeyPath) -> str:
    return json.dumps(path, separators=(",", ":"))


def _build(tree: Mapping[str, Any], above: KeyPath, value_of: Callable[[KeyPath, Leaf], Any]) -> dict[str, Any]:
    return {
        name: _build(node, (*above, name), value_of) if isinstance(node, dict) else value_of((*above, name), node)
        for name, node in tree.items()
    }


def _leaves(tree: Mapping[str, Any], above: KeyPath) -> Iterator[tuple[KeyPath, Leaf]]:
    for name in sorted(tree):
        node = tree[name]
        if isinstance(node, dict):
            yield from _leaves(node, (*above, name))
        else:
            yield (*above, name), node


def _node(path: KeyPath, value: Any) -> Leaf | dict[str, Any]:
    if not isinstance(path[-1], str) or not path[-1] or "." in path[-1]:
        raise HyperparameterError(
            path, value, f"{path[-1]!r} is not a valid name: a name is text without dots, and not empty"
        )
    if not isinstance(value, Mapping):
        _require_plain(path, value)
        return Const(type="const", val=value)
    if "type" in value:
        return _leaf(path, value)
    forgotten = next((key for key in _ONLY_IN_LEAVES if key in value), None)
    if forgotten is not None:
        raise HyperparameterError(
            path,
            value,
            f"has {forgotten} and no type; add one of {', '.join(KINDS)}. A mapping that is itself the value is "
            "written {type: const, val: {...}}",
        )
    return {name: _node((*path, name), node) for name, node in value.items()}


def _leaf(path: KeyPath, value: Mapping[str, Any]) -> Leaf:
    kind = value["type"]
    if not isinstance(kind, str) or kind not in KINDS:
        raise HyperparameterError(
            (*path, "type"),
            kind,
            f"must be one of {', '.join(KINDS)}{near_miss(kind, KINDS)}; a group of hyperparameters cannot "
            "hold one that is called type",
        )
    try:
        leaf = _LEAF.validate_python(value)
    except ValidationError as error:
        found = error.errors()[0]
        keys = found["loc"][1:]  # the first is the kind
        given = found["input"] if keys else value
        raise HyperparameterError((*path, *keys), given, rule_of(found, KINDS[kind].model_fields)) from None
    if isinstance(leaf, Const):
        _require_plain((*path, "val"), leaf.val, searched=False)
    if isinstance(leaf, Categorical):
        _require_plain((*path, "vals"), leaf.vals)
    return leaf


def _require_plain(path: tuple[str | int, ...], value: Any, *, searched: bool = True) -> None:
    """Checks that a value is plain; if `searched`, a space inside a list, which would not be drawn, is refused too."""
    if isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _require_plain((*path, index), item, searched=searched)
    elif isinstance(value, Mapping):
        if searched and str(value.get("type")) in KINDS:
            raise HyperparameterError(
                path,
                value,
                "a hyperparameter inside a list is not drawn; give it a separate key, or write the list as "
                "{type: const, val: [...]}",
            )
        for key, item in value.items():
            _require_plain((*path, key), item, searched=searched)
    elif value is not None and not isinstance(value, bool | int | float | str):
        raise HyperparameterError(
            path,
            value,
            f"a {type(value).__name__} is not a plain value; give text, number, true, false, null, list or mapping",
        )


def _check_batch_size(leaf: Leaf | dict[str, Any]) -> None:
    key = (GLOBAL_BATCH_SIZE,)
    if not isinstance(leaf, Const | Categorical | Int):
        raise HyperparameterError(key, {}, "a batch size is a whole number: choose a value, or type categorical or int")
    sizes = leaf.vals if isinstance(leaf, Categorical) else [leaf.val if isinstance(leaf, Const) else leaf.minval]
    wrong = [size for size in sizes if isinstance(size, bool) or not isinstance(size, int) or size < 1]
    if wrong:
        raise HyperparameterError(key, wrong[0], "the global batch size is a whole number of at least 1")
