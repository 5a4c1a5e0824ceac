"""The `searcher` section of an experiment, read and checked. Its keys and defaults are those of Determined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..errors import ConfigurationError
from .checks import number, one_of, reject_unknown, require_mapping, shown, whole_number

UNITS = ("epochs", "batches", "records")
MODES = ("aggressive", "standard", "conservative")

_COMMON = ("name", "metric", "smaller_is_better", "max_length")
KEYS = {
    "single": _COMMON,
    "random": (*_COMMON, "max_trials", "max_concurrent_trials"),
    "grid": (*_COMMON, "max_concurrent_trials"),
    "adaptive_asha": (
        *_COMMON,
        "max_trials",
        "max_concurrent_trials",
        "mode",
        "divisor",
        "max_rungs",
        "bracket_rungs",
        "stop_once",
    ),
}


@dataclass(frozen=True)
class SearcherSettings:
    """What the `searcher` section says.

    Attributes:
        name: `single`, `random`, `grid` or `adaptive_asha`.
        metric: The metric that ranks trials.
        smaller_is_better: Whether a smaller value of it is better.
        unit: `epochs`, `batches` or `records`.
        max_length: Length of a whole trial, in that unit.
        max_trials: Trials that are counted, which leaves out those with invalid hyperparameters. 1 for `single`;
            unused by `grid`.
        max_concurrent_trials: Trials that are asked for at the same time; 0 leaves the number to the searcher.
        mode: How eagerly `adaptive_asha` ends trials.
        divisor: One in so many trials gets on to the next rung; exactly the decimal number that was written.
        max_rungs: The most rungs that a bracket has.
        bracket_rungs: Rungs of each bracket; empty to derive them from the mode.
        stop_once: Whether trials are stopped for good instead of paused and promoted.
    """

    name: str
    metric: str
    smaller_is_better: bool
    unit: str
    max_length: int
    max_trials: int = 1
    max_concurrent_trials: int = 16
    mode: str = "standard"
    divisor: Fraction = Fraction(4)
    max_rungs: int = 5
    bracket_rungs: tuple[int, ...] = ()
    stop_once: bool = False


def read_settings(config: Any, path: str = "searcher") -> SearcherSettings:
    """Reads the `searcher` section. A key that is null has its default, as in Determined.

    Raises:
        ConfigurationError: If a key is unknown, missing or breaks its rule.
    """
    given = {key: value for key, value in require_mapping(path, config).items() if value is not None}
    if "name" not in given:
        raise ConfigurationError(f"{path}.name: missing; it is one of {', '.join(KEYS)}")
    name = one_of(f"{path}.name", given["name"], KEYS)
    reject_unknown(path, config, KEYS[name], f"the searcher {name}")
    for key in ("metric", "max_length", "max_trials"):
        if key in KEYS[name] and key not in given:
            raise ConfigurationError(f"{path}.{key}: missing; the searcher {name} needs it")
    unit, length = _max_length(f"{path}.max_length", given["max_length"])
    read: dict[str, Any] = {"metric": _text(f"{path}.metric", given["metric"]), "unit": unit, "max_length": length}
    for key, least in (("max_trials", 1), ("max_concurrent_trials", 0), ("max_rungs", 1)):
        if key in given:
            read[key] = whole_number(f"{path}.{key}", given[key], least)
    if "mode" in given:
        read["mode"] = one_of(f"{path}.mode", given["mode"], MODES)
    if "divisor" in given:
        read["divisor"] = _divisor(f"{path}.divisor", given["divisor"])
    if "bracket_rungs" in given:
        read["bracket_rungs"] = _bracket_rungs(f"{path}.bracket_rungs", given["bracket_rungs"])
    if "stop_once" in given:
        read["stop_once"] = _flag(f"{path}.stop_once", given["stop_once"])
    smaller = _flag(f"{path}.smaller_is_better", given.get("smaller_is_better", True))
    return SearcherSettings(name=name, smaller_is_better=smaller, **read)


def _text(path: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{path}={shown(value)}: it must be the name of a metric, such as val_loss")
    return value


def _flag(path: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigurationError(f"{path}={shown(value)}: it must be true or false")
    return value


def _max_length(path: str, value: Any) -> tuple[str, int]:
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{path}={shown(value)}: give the length with its unit, as in {{epochs: 9}}")
    reject_unknown(path, require_mapping(path, value), UNITS, "a length")
    if len(value) != 1:
        raise ConfigurationError(f"{path}={shown(dict(value))}: give exactly one of {', '.join(UNITS)}")
    ((unit, length),) = value.items()
    return unit, whole_number(f"{path}.{unit}", length, 1)


def _divisor(path: str, value: Any) -> Fraction:
    if number(path, value) <= 1:
        raise ConfigurationError(f"{path}={shown(value)}: it must be above 1")
    return Fraction(str(value))  # 3.3 as 33/10, not as the binary number beside it


def _bracket_rungs(path: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple):
        raise ConfigurationError(f"{path}={shown(value)}: it must be a list of whole numbers, as in [3, 2]")
    return tuple(whole_number(f"{path}[{index}]", rungs, 1) for index, rungs in enumerate(value))
