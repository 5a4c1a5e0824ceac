"""Keras callbacks on one of several ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras

# Subclasses may do more than write, such as talk to the other ranks.
_WRITERS = (keras.callbacks.ModelCheckpoint, keras.callbacks.CSVLogger)


class RankCallbacks(keras.callbacks.CallbackList):  # type: ignore[misc]
    """Callbacks that hear of the end of a validation once its metrics are those of all ranks, and so decide alike."""

    def on_test_end(self, logs: Any = None) -> None:
        """Does nothing: Keras' `evaluate` calls it with the metrics of this rank's rows."""

    def end_validation(self, metrics: Mapping[str, float]) -> None:
        """Calls `on_test_end` of each callback."""
        super().on_test_end(metrics)


def writing_on_rank_0(callbacks: Sequence[keras.callbacks.Callback], rank: int) -> list[keras.callbacks.Callback]:
    """Replaces Keras' own writers of files on the other ranks: two that write one file at once damage it.

    A replacement has the name of what it replaces, by which the state of the callbacks is restored.
    """
    return [
        type(type(each).__name__, (keras.callbacks.Callback,), {})() if rank > 0 and type(each) in _WRITERS else each
        for each in callbacks
    ]
