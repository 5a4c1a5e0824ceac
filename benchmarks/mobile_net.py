"""MobileNetV2 for the benchmarks of training: frozen below a new head, by hand, and trained as a whole, as a Trial.

The Trial notes what it sees (`notes.py`), and kills its rank every BENCHMARK_KILL_EVERY_S seconds.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import keras

from lakelens.training.trials.keras_trial import KerasTrial

from .notes import note, times

_MOST_KILLS = 50


def build(side: int, classes: int) -> keras.Model:
    """Builds the model, untrained, every layer trainable."""
    inputs = keras.Input((side, side, 3))
    scaled = keras.layers.Rescaling(1 / 127.5, offset=-1)(inputs)
    features = keras.applications.MobileNetV2((side, side, 3), include_top=False, weights=None, pooling="avg")(scaled)
    return keras.Model(inputs, keras.layers.Dense(classes, activation="softmax")(features))


def build_transfer(side: int, classes: int) -> keras.Model:
    """Builds by hand what the Trial `Transfer` builds without augmentation: the network frozen below a new head."""
    inputs = keras.Input((side, side, 3))
    backbone = keras.applications.MobileNetV2(input_shape=(side, side, 3), include_top=False, weights=None)
    backbone.trainable = False
    features = backbone(keras.layers.Rescaling(1 / 127.5, offset=-1)(inputs), training=False)
    features = keras.layers.Dropout(0.2)(keras.layers.GlobalAveragePooling2D()(features))
    return keras.Model(inputs, keras.layers.Dense(classes, activation="softmax")(features))


def optimizer() -> keras.optimizers.Optimizer:
    """Makes the optimizer that all contenders use."""
    return keras.optimizers.Adam(1e-3)


LOSS = "sparse_categorical_crossentropy"


class MobileNet(KerasTrial):
    """The model as lakelens trains it."""

    def build_model(self) -> keras.Model:
        """Builds and compiles the model."""
        if self.context.rank == 0:
            time_method("_write")
        model = build(self.context.image_size[0], self.context.num_classes)
        model.compile(optimizer(), LOSS)
        return model

    def keras_callbacks(self) -> list[keras.callbacks.Callback]:
        """Adds the witness."""
        return [Witness()] if self.context.rank == 0 and "BENCHMARK_FOLDER" in os.environ else []


class Witness(keras.callbacks.Callback):
    """Notes when this start of the rank ends its first step, and kills it when its time has come."""

    # Of the class: a checkpoint carries a callback's own values into the next start.
    is_first = True

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Looks at the clock."""
        if Witness.is_first:
            note("first_step")
            Witness.is_first = False
        every_s = float(os.environ.get("BENCHMARK_KILL_EVERY_S", "inf"))
        if every_s == float("inf") or len(killed := times("killed")) >= _MOST_KILLS:
            return
        if time.time() - (killed[-1] if killed else times("first_step")[0]) >= every_s:
            note("killed")
            os.kill(os.getpid(), signal.SIGKILL)


class EpochClock(keras.callbacks.Callback):
    """Adds the seconds of each epoch of a `fit` to a list."""

    def __init__(self, seconds: list[float]) -> None:
        super().__init__()
        self._seconds = seconds

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts the clock."""
        self._started = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Stops it."""
        self._seconds.append(time.perf_counter() - self._started)


def time_method(name: str) -> None:
    """Notes the seconds that each call of a method of lakelens' training loop takes."""
    from lakelens.training.segments.training_loop import TrainingLoop

    method: Callable[..., Any] = getattr(TrainingLoop, name)

    def timed(*arguments: Any, **named: Any) -> Any:
        started = time.perf_counter()
        try:
            return method(*arguments, **named)
        finally:
            note(name, seconds=time.perf_counter() - started)

    setattr(TrainingLoop, name, timed)
