"""Transfer learning: a backbone of keras.applications under a new head, then fine-tuning of its last layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...extras import missing_dependency

try:
    import keras
except ModuleNotFoundError as error:
    raise missing_dependency(error, __name__) or error from None

from ...errors import InvalidHyperparameters
from .backbones import IMAGENET, application
from .keras_trial import KerasTrial

if TYPE_CHECKING:
    from .context import TrialContext


class Transfer(KerasTrial):
    """A backbone with frozen weights, an average over its last feature map, and one trainable dense layer.

    Hyperparameters: `backbone`, any model of keras.applications by name ("MobileNetV2"); its own `preprocess_input` is
    part of the model. Initial `weights`: "imagenet", which rank 0 downloads; the path of a file that
    `save_weights` of that backbone has written, which rank 0 reads; or "none". `learning_rate` (0.001); `dropout` (0.2)
    before the dense layer. `flip` (true), `shift` (0.06), `rotation` (0.03) and `zoom` (0.1): random changes
    of images while training, as parts of their side, of a full turn and of their size.

    With `fine_tune_layers` above 0, that number of the backbone's last layers is also trained from epoch
    `fine_tune_after` (1) on, with the learning rate multiplied by `fine_tune_rate` (0.1). Batch normalisation in the
    backbone keeps its statistics.
    """

    def __init__(self, context: TrialContext) -> None:
        super().__init__(context)
        self._thawed: list[keras.layers.Layer] = []

    def build_model(self) -> keras.Model:
        """Builds backbone and head for the job's image size and classes."""
        hparam, seed = self.context.get_hparam, self.context.seed
        inputs = keras.Input((*self.context.image_size, 3))
        backbone, preprocess = application(
            hparam("backbone", "MobileNetV2"), hparam("weights", IMAGENET), self.context.image_size, self.context.rank
        )
        images = inputs
        for layer in augmentation(
            flip=hparam("flip", True),
            shift=hparam("shift", 0.06),
            rotation=hparam("rotation", 0.03),
            zoom=hparam("zoom", 0.1),
            seed=seed,
        ):
            images = layer(images)
        features = backbone(preprocess(images), training=False)
        features = keras.layers.GlobalAveragePooling2D()(features)
        features = keras.layers.Dropout(hparam("dropout", 0.2), seed=seed)(features)
        outputs = keras.layers.Dense(self.context.num_classes, "softmax", dtype="float32")(features)
        model = keras.Model(inputs, outputs, name="transfer")
        self._thaw(backbone)
        model.compile(
            optimizer=keras.optimizers.Adam(hparam("learning_rate", 0.001)),
            loss="sparse_categorical_crossentropy",
            weighted_metrics=["accuracy"],
        )
        return model

    def keras_callbacks(self) -> list[keras.callbacks.Callback]:
        """Starts fine-tuning at its epoch."""
        after, rate = self.context.get_hparam("fine_tune_after", 1), self.context.get_hparam("fine_tune_rate", 0.1)
        if not self._thawed:
            return []
        if after < 0 or rate <= 0:
            raise InvalidHyperparameters(
                f"fine_tune_after is {after} and fine_tune_rate is {rate}; give an epoch from 0 on and a factor above 0"
            )
        return [FineTuning(self._thawed, after, rate)]

    def _thaw(self, backbone: keras.Model) -> None:
        """Freezes the backbone except for the layers to fine-tune, for which the optimizer is made from the start."""
        count = self.context.get_hparam("fine_tune_layers", 0)
        layers = [layer for layer in backbone.layers if layer.weights and not _is_normalisation(layer)]
        if not 0 <= count <= len(layers):
            raise InvalidHyperparameters(
                f"fine_tune_layers is {count}; {backbone.name} has {len(layers)} layers with weights to train"
            )
        for layer in backbone.layers:
            layer.trainable = False
        self._thawed = layers[len(layers) - count :]
        for layer in self._thawed:
            layer.trainable = True


class FineTuning(keras.callbacks.Callback):
    """Trains some layers only from an epoch on, at a lower learning rate.

    The optimizer has the layers from the start, so that its state is the same if training continues from a checkpoint.
    """

    def __init__(self, layers: list[keras.layers.Layer], after: int, rate: float) -> None:
        super().__init__()
        self._layers, self._after, self._rate = layers, after, rate
        self.epoch = 0  # a checkpoint keeps it

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Lowers the learning rate when fine-tuning starts."""
        self.epoch = epoch
        if epoch == self._after:
            optimizer = self.model.optimizer
            optimizer.learning_rate = float(optimizer.learning_rate.numpy()) * self._rate

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Freezes or unfreezes the layers, if needed."""
        thawed = self.epoch >= self._after
        if self._layers[0].trainable == thawed:
            return
        for layer in self._layers:
            layer.trainable = thawed
        self.model.make_train_function(force=True)


def augmentation(*, flip: bool, shift: float, rotation: float, zoom: float, seed: int) -> list[keras.layers.Layer]:
    """Returns layers that change images randomly while training."""
    layers = keras.layers
    made: list[keras.layers.Layer] = [layers.RandomFlip("horizontal", seed=seed)] if flip else []
    if shift > 0:
        made.append(layers.RandomTranslation(shift, shift, fill_mode="nearest", seed=seed + 1))
    if rotation > 0:
        made.append(layers.RandomRotation(rotation, fill_mode="nearest", seed=seed + 2))
    if zoom > 0:
        made.append(layers.RandomZoom(zoom, fill_mode="nearest", seed=seed + 3))
    return made


def _is_normalisation(layer: keras.layers.Layer) -> bool:
    return isinstance(layer, keras.layers.BatchNormalization)
