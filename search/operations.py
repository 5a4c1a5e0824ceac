"""What a searcher asks of whoever runs the trials."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Create:
    """Start a trial and train it until it has reached a length; answered by `validated` or `exited`.

    Attributes:
        trial: Its number, from 0 in the order of creation.
        hyperparameters: Values by name, nested as in the configuration.
        length: To be reached, in the searcher's unit.
    """

    trial: int
    hyperparameters: dict[str, Any]
    length: int


@dataclass(frozen=True)
class Continue:
    """Train a trial on until it has reached a length; answered by `validated` or `exited`.

    Attributes:
        trial: Its number. It may have been paused since its last validation.
        length: To be reached, counted from the trial's beginning, in the searcher's unit.
    """

    trial: int
    length: int


@dataclass(frozen=True)
class Stop:
    """Give a trial up for good: it will never be continued. Needs no answer.

    Attributes:
        trial: Its number.
    """

    trial: int


Operation = Create | Continue | Stop
