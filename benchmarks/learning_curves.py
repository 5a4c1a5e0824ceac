"""Trainings for comparing searches without training: two formulas of hyperparameters and epochs, and real curves.

Both have the same losses in the end. In `alike` all trials learn at one speed, so that early losses rank them as late
ones do, up to noise. In `crossing` a higher learning rate learns faster, so that early losses mislead: after one epoch
the best learning rate is several times the final best one. `digits` are the curves of `digit_curves`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

from . import digit_curves

NAMES = ("alike", "crossing")
DIGITS = "digits"
MAX_LENGTH = 81
SPACE = {
    "learning_rate": {"type": "log", "base": 10, "minval": -5, "maxval": 0},
    "width": {"type": "int", "minval": 16, "maxval": 512},
    "dropout": {"type": "double", "minval": 0, "maxval": 0.8},
    "optimizer": {"type": "categorical", "vals": ["adam", "sgd"]},
}

_UNTRAINED = 2.3
_BEST_EXPONENT = -2.5
_NOISE = 0.01
_DRAWS_FOR_TARGET = 20_000


_digits: list[list[float]] = []


def train_digits(configurations: int) -> None:
    """Trains the networks whose curves `digits` are."""
    _digits[:] = digit_curves.train_all(configurations, MAX_LENGTH)


def space(name: str) -> dict[str, Any]:
    """The hyperparameters of a training; those of `digits` are the number of a network."""
    return {"network": {"type": "int", "minval": 0, "maxval": len(_digits) - 1}} if name == DIGITS else SPACE


def loss(name: str, hyperparameters: Mapping[str, Any], epochs: int) -> float:
    """The loss after some epochs, without noise."""
    if name == DIGITS:
        return _digits[hyperparameters["network"]][epochs - 1]
    exponent = math.log10(hyperparameters["learning_rate"]) - _BEST_EXPONENT
    distance = (exponent / 2.5) ** 2
    distance += 0.3 * (math.log2(hyperparameters["width"] / 256) / 4) ** 2
    distance += 0.3 * (hyperparameters["dropout"] - 0.3) ** 2
    distance += 0.05 * (hyperparameters["optimizer"] == "sgd")
    end = 0.05 + 0.6 * distance
    speed = 1 / 8 if name == "alike" else 10 ** (exponent / 25) / 2
    return end + (_UNTRAINED - end) * math.exp(-epochs * speed)


def measured(name: str, hyperparameters: Mapping[str, Any], epochs: int) -> float:
    """The loss as a validation measures it: with noise, which is the same for the same hyperparameters and epochs."""
    if name == DIGITS:
        return loss(name, hyperparameters, epochs)
    noise = random.Random(f"{sorted(hyperparameters.items())} {epochs}").gauss(0, _NOISE)  # noqa: S311
    return loss(name, hyperparameters, epochs) + noise


def target(name: str, share: float) -> float:
    """The loss that this share of whole trials reaches."""
    if name == DIGITS:
        return sorted(curve[-1] for curve in _digits)[max(round(share * len(_digits)), 1) - 1]
    from lakelens.search import create_searcher

    config = {"name": "random", "metric": "loss", "max_length": {"epochs": MAX_LENGTH}, "max_trials": _DRAWS_FOR_TARGET}
    searcher = create_searcher(config, SPACE, seed=-1)
    losses = sorted(loss(name, searcher.hyperparameters(trial), MAX_LENGTH) for trial in range(_DRAWS_FOR_TARGET))
    return losses[round(share * _DRAWS_FOR_TARGET) - 1]
