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

    A subclass must define the model; everything else has a default. The job calls it once per rank and adds the
    distribution: gradients averaged over ranks, metrics over the rows of all ranks, checkpoints from rank 0.

    Examples:
        >>> class Linear(lakelens.KerasTrial):
        ...     def build_model(self):
        ...         import keras
        ...         model = keras.Sequential([
        ...             keras.Input((*self.context.image_size, 3)),
        ...             keras.layers.Rescaling(1 / 255),
        ...             keras.layers.Flatten(),
        ...             keras.layers.Dense(self.context.num_classes, "softmax"),
        ...         ])
        ...         rate = self.context.get_hparam("learning_rate")
        ...         loss = "sparse_categorical_crossentropy"
        ...         model.compile(keras.optimizers.SGD(rate), loss, weighted_metrics=["accuracy"])
        ...         return model
    """

    @abstractmethod
    def build_model(self) -> keras.Model:
        """Builds the compiled model; raises `InvalidHyperparameters` for an invalid combination of hyperparameters.

        The model takes images [batch, height, width, 3] with pixels from 0 to 255 (make scaling a layer of the model,
        so that it works on raw pixels) and returns a probability per class [batch, classes]; for two classes it may
        return only the second's [batch, 1]. Logits work too. Which of the two it gives is read from its last layer,
        else from the `from_logits` of its loss; set `outputs` if neither shows it. `metrics` and `weighted_metrics`
        both count each row of an epoch once; padding rows do not count.
        """

    def preprocess(self, images: tf.Tensor, labels: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Augments a training batch: images float32 [batch, height, width, 3] from 0 to 255, labels as the task's.

        The labels are int32 [batch] for classification and float32 [batch, boxes, 6] for detection. `seed`, int32 [2],
        differs by batch, epoch and rank. What draws from it, as `tf.random.stateless_uniform` does, is the same after a
        resume. Validation and inference do not use it: make transformations that they need layers of the model.
        """
        return images, labels

    def keras_callbacks(self) -> list[keras.callbacks.Callback]:
        """Returns callbacks for every rank; they see the metrics over all ranks, equal on each."""
        return []

    def build_training_dataset(self) -> tf.data.Dataset | None:
        """Returns the batches (images, labels, weights) of this rank; None uses the job's feed, as most Trials do.

        Weights count as in `fit`; a row of weight 0 is padding, and a scalar among the labels belongs to the whole
        batch. Every rank must give `context.training_feed.steps_per_epoch(global_batch_size, size)` batches per epoch.
        """
        return None

    def build_validation_dataset(self) -> tf.data.Dataset | None:
        """Gives this rank's share of the validation batches (images, labels, weights); None uses the job's feed."""
        return None
