"""Measures the epochs of a `fit`."""

from __future__ import annotations

import time
from typing import Any

import keras


class EpochClock(keras.callbacks.Callback):  # type: ignore[misc]
    """Adds the seconds of each epoch to a list."""

    def __init__(self, seconds: list[float]) -> None:
        super().__init__()
        self._seconds = seconds

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts the clock."""
        self._started = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Stops it."""
        self._seconds.append(time.perf_counter() - self._started)
