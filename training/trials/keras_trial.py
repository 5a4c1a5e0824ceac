"""The Trial of a Keras model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from .trial import Trial

if TYPE_CHECKING:
    import keras
    import tensorflow as tf


class KerasTrial(Trial, ABC):
    """One way to train a Keras model on the images of a table.

    A subclass must say which model; everything else has a default. The job calls it once per rank and adds what
    distribution needs: gradients averaged over ranks, metrics over the rows of all ranks, checkpoints from rank 0.
    """

    @abstractmethod
    def build_model(self) -> keras.Model:
        """Builds the compiled model; raises `InvalidHyperparameters` where the hyperparameters make no sense together.

        It takes images [batch, height, width, 3] with pixels from 0 to 255 (scaling is a layer of it, so that whoever
        loads the model need not know it) and gives a probability per class [batch, classes]; of two classes it may
        give the second's alone [batch, 1]. Logits will do, where the last layer has no activation. `metrics` and
        `weighted_metrics` both count each row of an epoch once; rows that fill a batch are left out.
        """

    def preprocess(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Augments a training batch: images float32 [batch, height, width, 3] from 0 to 255, labels int32 [batch].

        Validation and inference never see it: what they need too belongs into the model as a layer.
        """
        return images, labels

    def keras_callbacks(self) -> list[keras.callbacks.Callback]:
        """Returns callbacks for every rank; the metrics that they see are those over all ranks, equal on each."""
        return []

    def build_training_dataset(self) -> tf.data.Dataset | None:
        """Returns the batches (images, labels, weights) of this rank; None takes the job's feed, as most Trials do.

        Weights count as in `fit`; a row of weight 0 fills a batch, and a scalar among the labels is the whole batch's.
        Every rank must give `context.training_feed.steps_per_epoch(batch_size, size)` batches per epoch.
        """
        return None

    def build_validation_dataset(self) -> tf.data.Dataset | None:
        """Gives this rank's share of the validation batches (images, labels, weights); None takes the job's feed."""
        return None
