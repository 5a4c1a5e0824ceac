"""A small convolutional network: the baseline that trains on a laptop in seconds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ...errors import InvalidHyperparameters, TrialError
from .keras_trial import KerasTrial

if TYPE_CHECKING:
    import keras

    from .context import TrialContext

_MOMENTUM = 0.9
_LEFT_AFTER_AN_EPOCH = 1 / 8


class SmallCnn(KerasTrial):
    """Blocks of convolution, batch normalisation and pooling, then one dense layer.

    Hyperparameters: `learning_rate` (0.003) at the first epoch, which then falls along half a cosine to zero; `filters`
    of the first block (16; each later block has twice the number); `blocks` (0 reduces the shorter side to 3 to 6
    pixels); `dense_units` (64); `dropout` (0); `shift` (0.06) and `rotation` (0.03), the largest
    random shift as a part of the side and rotation as a part of a full turn while training, 0 for none.
    """

    def build_model(self) -> keras.Model:
        """Builds the network for the job's image size and classes."""
        import keras

        hparam = self.context.get_hparam
        layers = [keras.Input((*self.context.image_size, 3)), keras.layers.Rescaling(1 / 255), *self._augmentation()]
        filters = hparam("filters", 16)
        momentum = momentum_of(self.context)
        for block in range(blocks_of(self.context, "SmallCnn")):
            # The first block halves the image at once, because full-size feature maps would dominate the cost.
            kernel, stride = (5, 2) if block == 0 else (3, 1)
            layers += [
                keras.layers.Conv2D(filters << block, kernel, stride, "same", use_bias=False),
                keras.layers.BatchNormalization(momentum=momentum),
                keras.layers.ReLU(),
            ]
            if block > 0:
                layers.append(keras.layers.MaxPooling2D())
        layers += [
            keras.layers.Flatten(),
            keras.layers.Dense(hparam("dense_units", 64), "relu"),
            keras.layers.Dropout(hparam("dropout", 0.0), seed=self.context.seed),
            keras.layers.Dense(self.context.num_classes, "softmax", dtype="float32"),
        ]
        model = keras.Sequential(layers, name="small_cnn")
        model.compile(
            optimizer=keras.optimizers.Adam(hparam("learning_rate", 0.003)),
            loss="sparse_categorical_crossentropy",
            weighted_metrics=["accuracy"],
        )
        return model

    def keras_callbacks(self) -> list[keras.callbacks.Callback]:
        """Lets the learning rate fall to zero over the planned epochs."""
        import keras

        # Relative to the current rate, which may have been scaled by the number of ranks.
        epochs = self.context.epochs
        return [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * falling(epoch, epochs))]

    def _augmentation(self) -> list[keras.layers.Layer]:
        import keras

        shift, rotation = self.context.get_hparam("shift", 0.06), self.context.get_hparam("rotation", 0.03)
        layers = []
        if shift > 0:
            layers.append(keras.layers.RandomTranslation(shift, shift, fill_mode="nearest", seed=self.context.seed))
        if rotation > 0:
            layers.append(keras.layers.RandomRotation(rotation, fill_mode="nearest", seed=self.context.seed + 1))
        return layers


def momentum_of(context: TrialContext) -> float:
    """Chooses a momentum with which batch normalisation's moving means follow within an epoch of few steps.

    At the end of an epoch at most an eighth of the earlier means remains. At 20 steps and more it is 0.9.
    """
    if context.training_feed is None:
        return _MOMENTUM
    steps = context.training_feed.steps_per_epoch(context.global_batch_size)
    return min(_MOMENTUM, float(_LEFT_AFTER_AN_EPOCH ** (1 / steps)))


def falling(epoch: int, epochs: int) -> float:
    """Returns the factor by which the learning rate changes from the epoch before to this one, along half a cosine."""
    return half_cosine(1.0, epoch, epochs) / half_cosine(1.0, min(epoch, epochs) - 1, epochs) if epoch > 0 else 1.0


def half_cosine(first: float, epoch: int, epochs: int) -> float:
    """Returns the learning rate of an epoch, counted from 0: `first` at the start, near 0 at last (Loshchilov 2016)."""
    return first * 0.5 * (1 + math.cos(math.pi * min(epoch, epochs) / max(1, epochs)))


def blocks_of(context: TrialContext, trial: str) -> int:
    """Returns the number of convolution blocks that the hyperparameter `blocks` and the image size give."""
    side = min(context.image_size)
    most = int(math.log2(side)) - 1
    if most < 1:
        raise TrialError(f"images of {side} pixels are too small for {trial}; it needs at least 4")
    blocks = int(context.get_hparam("blocks", 0))
    if not 0 <= blocks <= most:
        raise InvalidHyperparameters(
            f"hyperparameter 'blocks' is {blocks}; images of {side} pixels allow 0 (automatic) to {most}"
        )
    return blocks or max(1, round(math.log2(side / 4)))
