"""An object detector: a small anchor-free network, from random weights or on a network of keras.applications."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from ...extras import missing_dependency

try:
    import keras
except ModuleNotFoundError as error:
    raise missing_dependency(error, __name__) or error from None

from ...errors import InvalidHyperparameters, TrialError
from ..tasks.detection import Detection
from .backbones import NO_WEIGHTS, application
from .box_augmentation import Augmentation
from .context import TrialContext
from .detection_loss import DetectionLoss
from .detection_network import application_features, detection_model, small_backbone
from .keras_trial import KerasTrial
from .small_cnn import falling

SMALL = "small"
_SMALL_STRIDES = (4, 8, 16)


class Detector(KerasTrial):
    """Feature pyramid and one head for all of its levels; for `task: detection`.

    Hyperparameters: `backbone`, "small" (trains from random weights) or any model of keras.applications by name; its
    initial `weights`, "none", "imagenet" or the path of a file that `save_weights` of that backbone has written.
    `image_size` (0), the side of the square that images are letterboxed to within the model, 0 for the feed's size.
    `strides` ([8, 16]) of the pyramid's levels; `width` (64) of pyramid and head. `learning_rate` (0.001) at the first
    epoch, which then falls along half a cosine to zero; `weight_decay` (1e-4); `box_weight` (2), weight of the boxes in
    the loss. `flip` (true), `shift` (0.06), `scale` (0.2), `crop` (0) and `colour` (0.4): the largest random changes of
    images while training, see `Augmentation`.
    """

    def __init__(self, context: TrialContext) -> None:
        super().__init__(context)
        if not isinstance(context.task, Detection):
            raise TrialError(
                f"Detector trains on boxes, and the experiment's task is {context.task.name}; set task: detection"
            )
        hparam = context.get_hparam
        self._augmentation = Augmentation(
            flip=hparam("flip", True),
            shift=hparam("shift", 0.06),
            scale=hparam("scale", 0.2),
            crop=hparam("crop", 0.0),
            colour=hparam("colour", 0.4),
        )

    def build_model(self) -> keras.Model:
        """Builds the detector for the job's image size and classes."""
        hparam = self.context.get_hparam
        strides, size = self._strides(), hparam("image_size", 0)
        model, levels = detection_model(
            self.context.image_size,
            self.context.num_classes,
            strides=strides,
            width=_at_least("width", hparam("width", 64), 1),
            backbone=self._backbone(strides),
            inner_size=_at_least("image_size", size, 2 * strides[-1]) if size else 0,
        )
        model.compile(
            optimizer=keras.optimizers.AdamW(hparam("learning_rate", 1e-3), weight_decay=hparam("weight_decay", 1e-4)),
            loss=DetectionLoss([level.as_list() for level in levels], hparam("box_weight", 2.0)),
        )
        return model

    def preprocess(self, images: Any, labels: Any, seed: Any) -> tuple[Any, Any]:
        """Changes a training batch randomly, boxes together with their pixels."""
        return self._augmentation.apply(images, labels, seed)

    def keras_callbacks(self) -> list[keras.callbacks.Callback]:
        """Lets the learning rate fall to zero over the planned epochs."""
        epochs = self.context.epochs
        return [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * falling(epoch, epochs))]

    def _strides(self) -> list[int]:
        strides = self.context.get_hparam("strides", [8, 16])
        doubles = all(isinstance(stride, int) for stride in strides) and all(
            coarse == 2 * fine for fine, coarse in pairwise(strides)
        )
        if not strides or not doubles or strides[0] not in (4, 8, 16, 32):
            raise InvalidHyperparameters(
                f"hyperparameter 'strides' is {strides}; give powers of two from 4 to 32, each twice the one before"
            )
        return list(strides)

    def _backbone(self, strides: list[int]) -> Callable[[Any], Mapping[int, Any]]:
        """Returns what builds the features by their stride."""
        name, weights = self.context.get_hparam("backbone", SMALL), self.context.get_hparam("weights", NO_WEIGHTS)
        if name == SMALL:
            if weights != NO_WEIGHTS:
                raise InvalidHyperparameters(
                    f"hyperparameter 'weights' is {weights!r}, and backbone 'small' trains from random weights; start "
                    "with those of another training by warm_start"
                )
            if strides[-1] > _SMALL_STRIDES[-1]:
                raise InvalidHyperparameters(f"backbone 'small' has strides {_SMALL_STRIDES}, and {strides} were given")
            return small_backbone

        def build(images: Any) -> Mapping[int, Any]:
            network, preprocess = application(name, weights, tuple(images.shape[1:3]), self.context.rank)
            if weights != NO_WEIGHTS:
                for layer in network.layers:  # batches of detectors are too small to renew good statistics
                    layer.trainable = not isinstance(layer, keras.layers.BatchNormalization)
            features = application_features(network, strides)
            several = keras.Model(network.inputs, [features[stride] for stride in strides], name=network.name)
            outputs = several(preprocess(images))
            return dict(zip(strides, outputs if len(strides) > 1 else [outputs], strict=True))

        return build


def _at_least(name: str, value: int, least: int) -> int:
    if value < least:
        raise InvalidHyperparameters(f"hyperparameter {name!r} is {value}; it must be at least {least}")
    return value
