"""Averages of the weights that a Keras optimizer keeps: which weights are measured and saved, as in Keras' `fit`.

`SwapEMAWeights` exchanges both for each validation; a checkpoint then has the averages as the model's weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import keras
import numpy as np

from ....errors import TrialError
from ...keras_internals import averaged_weights, averages_are_in_model


class Averages:
    """The averages of a model in training."""

    def __init__(self, model: keras.Model, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        self._model = model
        swaps = [each for each in callbacks if isinstance(each, keras.callbacks.SwapEMAWeights)]
        if len(swaps) > 1:
            raise TrialError(f"keras_callbacks has {len(swaps)} SwapEMAWeights, which undo one another; keep one")
        self._swap = swaps[0] if swaps else None
        self._is_loaded = False
        if self._swap is not None and not averaged_weights(model.optimizer):
            kind = type(getattr(model.optimizer, "inner_optimizer", model.optimizer)).__name__
            raise TrialError(
                f"keras_callbacks has SwapEMAWeights, and the optimizer {kind} keeps no averages: make it with "
                "use_ema=True"
            )

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Gives the model the averages for a block if a callback swaps them; before the first step there are none."""
        # The callback adds and subtracts, which rounds: the weights in training would depend on how often it is called.
        exchanges = not self._is_loaded and self._has_weights_in_training()
        if exchanges:
            self._exchange()
        try:
            yield
        finally:
            if exchanges:
                self._exchange()

    def loaded(self) -> None:
        """Takes note that the model has the weights of a checkpoint of this training, and does not train on."""
        self._is_loaded = True

    def continue_training(self) -> None:
        """Gives a loaded model the weights in training again; between two epochs the callback does it itself."""
        if self._has_weights_in_training():
            self._exchange()

    def finalize(self) -> bool:
        """Gives the model the averages, with which `fit` ends; returns whether no checkpoint has these weights."""
        if self._swap is not None and averages_are_in_model(self._swap):
            return False  # the optimizer has the weights in training in their place
        before = [np.asarray(weight) for weight in self._model.trainable_weights]
        self._model.optimizer.finalize_variable_values(self._model.trainable_weights)
        changed = zip(before, self._model.trainable_weights, strict=True)
        return self._swap is None and not all(np.array_equal(old, np.asarray(new)) for old, new in changed)

    def _has_weights_in_training(self) -> bool:
        """Returns whether a callback swaps averages, and has them where the optimizer keeps them."""
        if self._swap is None or averages_are_in_model(self._swap):
            return False
        return int(self._model.optimizer.iterations) > 0

    def _exchange(self) -> None:
        for weight, average in averaged_weights(self._model.optimizer):
            trained = np.asarray(weight)
            weight.assign(average)
            average.assign(trained)
