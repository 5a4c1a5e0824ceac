"""The operations that a searcher asks its caller to carry out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Create:
    """Start a trial and train it until it has reached a length; answered by `validated` or `exited`.

    Attributes:
        trial: Its number, from 0 in the order of creation.
        hyperparameters: Values by name, nested as in the configuration.
        length: Length to reach, in the searcher's unit.
    """

    trial: int
    hyperparameters: dict[str, Any]
    length: int


@dataclass(frozen=True)
class Continue:
    """Train a trial on until it has reached a length; answered by `validated` or `exited`.

    Attributes:
        trial: Its number. It may have been paused since its last validation.
        length: Length to reach, counted from the trial's beginning, in the searcher's unit.
    """

    trial: int
    length: int


@dataclass(frozen=True)
class Stop:
    """Stop a trial permanently: it will never be continued. Needs no answer.

    Attributes:
        trial: Its number.
    """

    trial: int


Operation = Create | Continue | Stop
