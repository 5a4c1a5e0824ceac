"""Spaces of hyperparameters, and the draw of one trial's values.

A draw depends on the seed, the trial's number and the hyperparameter's path alone: a new hyperparameter does not change
the draws of the others, and no order of events changes any. The number behind a draw is

    n = the first 8 bytes, big-endian, of SHA-256 of the JSON text `[seed,trial,["optimizer","learning_rate"]]`

without spaces and with non-ASCII characters escaped. A `double` is at u = (n >> 11) / 2**53 between its bounds, the
exponent of a `log` likewise; an `int` is `minval + (n * (maxval - minval + 1) >> 64)`; a `categorical` is
`vals[n * len(vals) >> 64]`.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..errors import ConfigurationError
from .checks import number, reject_unknown, require_mapping, shown, suggestion, whole_number

KeyPath = tuple[str, ...]


@dataclass(frozen=True)
class Constant:
    """One value."""

    value: Any

    def at(self, _: int) -> Any:
        """The value."""
        return copy.deepcopy(self.value)


@dataclass(frozen=True)
class Categorical:
    """One of several values, all alike in probability."""

    values: tuple[Any, ...]

    def at(self, draw: int) -> Any:
        """The value at a draw of 64 bits."""
        return copy.deepcopy(self.values[draw * len(self.values) >> 64])


@dataclass(frozen=True)
class Int:
    """A whole number between two bounds, both included."""

    minval: int
    maxval: int
    count: int | None = None

    def at(self, draw: int) -> int:
        """The value at a draw of 64 bits."""
        return self.minval + (draw * (self.maxval - self.minval + 1) >> 64)


@dataclass(frozen=True)
class Double:
    """A number between two bounds."""

    minval: float
    maxval: float
    count: int | None = None

    def at(self, draw: int) -> float:
        """The value at a draw of 64 bits."""
        return between(self.minval, self.maxval, _share(draw))


@dataclass(frozen=True)
class Log:
    """A power of a base, whose exponent lies between two bounds."""

    base: float
    minval: float
    maxval: float
    count: int | None = None

    def at(self, draw: int) -> float:
        """The value at a draw of 64 bits."""
        return self.power(between(self.minval, self.maxval, _share(draw)))

    def power(self, exponent: float) -> float:
        """The base to the power of an exponent."""
        return math.pow(self.base, exponent)


Leaf = Constant | Categorical | Int | Double | Log


@dataclass(frozen=True)
class Space:
    """The hyperparameters of an experiment.

    Attributes:
        tree: For each name its space, or a further tree.
    """

    tree: Mapping[str, Any]

    def draw(self, seed: int, trial: int) -> dict[str, Any]:
        """Draws the values of one trial, nested as the space is."""
        return self.build(lambda path, leaf: leaf.at(0 if isinstance(leaf, Constant) else _draw(seed, trial, path)))

    def build(self, value_of: Callable[[KeyPath, Leaf], Any]) -> dict[str, Any]:
        """Makes values nested as the space is, each by a function of the hyperparameter's path and space."""
        return _build(self.tree, (), value_of)

    def leaves(self) -> Iterator[tuple[KeyPath, Leaf]]:
        """Lists the path and space of every hyperparameter, sorted by name at each level."""
        return _leaves(self.tree, ())


def between(low: float, high: float, share: float) -> float:
    """The number at a share (0 to 1) of the way between two bounds; never outside them."""
    return min(max(low * (1.0 - share) + high * share, low), high)


def read_space(config: Any, path: str = "hyperparameters") -> Space:
    """Reads the `hyperparameters` section.

    Raises:
        ConfigurationError: If a key is unknown, missing or breaks its rule.
    """
    return Space(_read_group(path, {} if config is None else config))


def _draw(seed: int, trial: int, path: KeyPath) -> int:
    text = f"[{seed},{trial},{_as_json(path)}]"
    return int.from_bytes(hashlib.sha256(text.encode("ascii")).digest()[:8], "big")


@lru_cache(maxsize=1024)
def _as_json(path: KeyPath) -> str:
    return json.dumps(path, separators=(",", ":"))


def _share(draw: int) -> float:
    return (draw >> 11) / 2.0**53


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


# --- reading --------------------------------------------------------------------------------------------------------

_ONLY_IN_SPACES = ("val", "vals", "minval", "maxval")


def _read_group(path: str, config: Any) -> dict[str, Any]:
    return {name: _read_node(f"{path}.{name}", node) for name, node in require_mapping(path, config).items()}


def _read_node(path: str, node: Any) -> Leaf | dict[str, Any]:
    if not isinstance(node, Mapping):
        return Constant(_plain(path, node))
    if "type" in node:
        return _read_leaf(path, require_mapping(path, node))
    forgotten = next((key for key in _ONLY_IN_SPACES if key in node), None)
    if forgotten is not None:
        raise ConfigurationError(
            f"{path}: it has {forgotten} and no type; add one of {', '.join(_READERS)}. A mapping that is itself the "
            "value is written {type: const, val: {...}}"
        )
    return _read_group(path, node)


def _read_leaf(path: str, node: Mapping[str, Any]) -> Leaf:
    kind = node["type"]
    if not isinstance(kind, str) or kind not in _READERS:
        raise ConfigurationError(
            f"{path}.type={shown(kind)}: it must be one of {', '.join(_READERS)}{suggestion(kind, _READERS)}; a group "
            "of hyperparameters cannot hold one that is called type"
        )
    keys, read = _READERS[kind]
    reject_unknown(path, node, ("type", *keys), f"a hyperparameter of type {kind}")
    for key in keys:
        if key != "count" and key not in node:
            raise ConfigurationError(f"{path}.{key}: missing; a hyperparameter of type {kind} needs it")
    return read(path, node)


def _constant(path: str, node: Mapping[str, Any]) -> Constant:
    return Constant(_plain(f"{path}.val", node["val"], searched=False))


def _categorical(path: str, node: Mapping[str, Any]) -> Categorical:
    values = node["vals"]
    if not isinstance(values, list | tuple) or not values:
        raise ConfigurationError(f"{path}.vals={shown(values)}: it must be a list of at least one value")
    return Categorical(tuple(_plain(f"{path}.vals[{i}]", value) for i, value in enumerate(values)))


def _int(path: str, node: Mapping[str, Any]) -> Int:
    low, high = (whole_number(f"{path}.{key}", node[key]) for key in ("minval", "maxval"))
    _require_order(path, low, high)
    return Int(low, high, _count(path, node))


def _double(path: str, node: Mapping[str, Any]) -> Double:
    low, high = _bounds(path, node)
    return Double(low, high, _count(path, node))


def _log(path: str, node: Mapping[str, Any]) -> Log:
    base = number(f"{path}.base", node["base"])
    if base <= 0 or base == 1:
        raise ConfigurationError(f"{path}.base={shown(base)}: it must be above 0 and not 1")
    low, high = _bounds(path, node)
    leaf = Log(float(base), low, high, _count(path, node))
    for key, exponent in (("minval", low), ("maxval", high)):
        try:
            usable = leaf.power(exponent) > 0
        except OverflowError:
            usable = False
        if not usable:
            raise ConfigurationError(
                f"{path}.{key}={exponent:g}: {base:g} to the power of it is no number that a double holds; the "
                "bounds of log are exponents"
            )
    return leaf


def _bounds(path: str, node: Mapping[str, Any]) -> tuple[float, float]:
    low, high = (number(f"{path}.{key}", node[key]) for key in ("minval", "maxval"))
    _require_order(path, low, high)
    return float(low), float(high)


def _require_order(path: str, low: float, high: float) -> None:
    if low > high:
        raise ConfigurationError(f"{path}.minval={low}: it is above maxval={high}")


def _count(path: str, node: Mapping[str, Any]) -> int | None:
    return None if node.get("count") is None else whole_number(f"{path}.count", node["count"], 1)


def _plain(path: str, value: Any, *, searched: bool = True) -> Any:
    """Copies a plain value: text, numbers, true, false, null, lists and mappings of these.

    With `searched`, a space inside a list is refused, for it would go to the trial as it is written.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(f"{path}[{index}]", item, searched=searched) for index, item in enumerate(value)]
    if not isinstance(value, Mapping):
        raise ConfigurationError(
            f"{path}={shown(value)}: a {type(value).__name__} is no plain value; give text, a number, true, false, "
            "null, a list or a mapping"
        )
    if searched and value.get("type") in _READERS:
        raise ConfigurationError(
            f"{path}={shown(dict(value))}: a hyperparameter inside a list is not drawn; give it a key of its own, or "
            "write the list as {type: const, val: [...]}"
        )
    return {key: _plain(f"{path}.{key}", item, searched=searched) for key, item in require_mapping(path, value).items()}


_READERS: dict[str, tuple[tuple[str, ...], Callable[[str, Mapping[str, Any]], Leaf]]] = {
    "const": (("val",), _constant),
    "categorical": (("vals",), _categorical),
    "double": (("minval", "maxval", "count"), _double),
    "int": (("minval", "maxval", "count"), _int),
    "log": (("base", "minval", "maxval", "count"), _log),
}
