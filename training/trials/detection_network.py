"""A small anchor-free detector as a plain Keras model: a feature pyramid under one head for all of its levels.

Source of the kind: Z. Tian et al., "FCOS: Fully Convolutional One-Stage Object Detection", ICCV 2019; the normalisation
of each level in the shared head: G. Ghiasi et al., "NAS-FPN", CVPR 2019. Only layers and operations of Keras, so that
Keras loads the model in safe mode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import keras
from keras import layers, ops

from ...errors import InvalidHyperparameters

# The score of every class at the start, so that the many locations without an object do not rule the first steps.
_PRIOR = 0.01
_MOMENTUM = 0.95
_HEAD_LAYERS = 2
_SMALL_WIDTHS = (16, 32, 64, 128)
_WHITE = 255.0
# Features are of a stride if theirs differs by less than this factor.
_NEAR = math.sqrt(2)
# A side of a box is 2 strides for a value of 1.
_STRIDES_PER_UNIT = 2.0


@dataclass(frozen=True)
class Level:
    """The locations of one level of the pyramid, on a grid over the image that the model takes."""

    rows: int  # Rows of the grid
    columns: int  # Columns of the grid
    step_y: float  # Pixels between rows
    step_x: float  # Pixels between columns
    top: float = 0.0  # Where the grid begins, in pixels; negative if the model letterboxes its images
    left: float = 0.0  # The same from the left

    def as_list(self) -> list[float]:
        """Gives the values for a configuration."""
        return list(astuple(self))


def conv(values: Any, filters: int, strides: int = 1) -> Any:
    """Adds a convolution, batch normalization and a rectifier."""
    values = layers.Conv2D(filters, 3, strides, padding="same", use_bias=False, kernel_initializer="he_normal")(values)
    return layers.ReLU()(layers.BatchNormalization(momentum=_MOMENTUM)(values))


def small_backbone(images: Any) -> dict[int, Any]:
    """Builds a small residual network that learns from random weights; gives features by their stride: 4, 8, 16."""
    features = {}
    values = conv(layers.Rescaling(1 / 127.5, -1)(images), _SMALL_WIDTHS[0], strides=2)
    for power, width in enumerate(_SMALL_WIDTHS[1:], start=2):
        values = conv(values, width, strides=2)
        values = layers.Add()([values, conv(values, width)])
        features[2**power] = values
    return features


def application_features(network: keras.Model, strides: Sequence[int]) -> dict[int, Any]:
    """Finds the last features of a network of keras.applications at each stride."""
    height, width = network.input_shape[1:3]
    found: dict[int, Any] = {}
    for layer in network.layers:
        output = layer.output
        if isinstance(output, (list, tuple)) or len(output.shape) != 4 or output.shape[1] is None:
            continue
        for stride in strides:
            # Networks without padding have a row or two less than the image divided by the stride; a row more has what
            # is padded for the next convolution.
            if height / (stride * _NEAR) < output.shape[1] <= math.ceil(height / stride):
                found[stride] = output
    missing = [stride for stride in strides if stride not in found]
    if missing:
        raise InvalidHyperparameters(
            f"{network.name} on images of {height} x {width} pixels has no features of stride {missing[0]}; choose "
            "other strides or a larger image"
        )
    return found


def detection_model(
    image_size: tuple[int, int],
    classes: int,
    *,
    strides: Sequence[int],
    width: int,
    backbone: Callable[[Any], Mapping[int, Any]],
    inner_size: int = 0,
) -> tuple[keras.Model, list[Level]]:
    """Builds the detector.

    Returns the model, from images [rows, height, width, 3] to [rows, candidates, 4 + classes]: xmin, ymin, xmax, ymax
    in pixels of the images, then a logit per class; and the levels, in the order of the candidates.
    """
    images = keras.Input((*image_size, 3), name="image")
    values, (height, width_, scale, top, left) = _letterboxed(images, image_size, inner_size)
    features = backbone(values)
    missing = [stride for stride in strides if stride not in features]
    if missing:
        raise InvalidHyperparameters(f"the backbone has features of strides {list(features)}, none of {missing[0]}")
    pyramid = _pyramid({stride: features[stride] for stride in strides}, width)
    head = _Head(classes, width)
    levels, rows = [], []
    for values in pyramid:
        rows_, columns = values.shape[1:3]
        steps = (height / rows_ * scale, width_ / columns * scale)
        level = Level(rows_, columns, *steps, -top * scale, -left * scale)
        levels.append(level)
        rows.append(head.answers(values, level))
    output = layers.Concatenate(axis=1, name="boxes", dtype="float32")(rows) if len(rows) > 1 else rows[0]
    return keras.Model(images, output, name="detector"), levels


def _letterboxed(
    images: Any, size: tuple[int, int], inner: int
) -> tuple[Any, tuple[float, float, float, float, float]]:
    """Letterboxes images; gives them, their size, pixels of the image for one of theirs, and the edges in theirs."""
    height, width = size
    if inner in (0, height) and inner in (0, width):
        return images, (height, width, 1.0, 0.0, 0.0)
    values = layers.Resizing(inner, inner, pad_to_aspect_ratio=True, fill_mode="constant", fill_value=_WHITE)(images)
    # As Resizing pads: first to a square, by whole pixels, then it scales.
    side = max(height, width)
    scale = side / inner
    return values, (inner, inner, scale, (side - height) // 2 / scale, (side - width) // 2 / scale)


def _pyramid(features: Mapping[int, Any], width: int) -> list[Any]:
    """Adds coarse features to fine ones; the finest level first (T.-Y. Lin et al., CVPR 2017)."""
    strides = sorted(features)
    sums = {stride: layers.Conv2D(width, 1, name=f"lateral_{stride}")(features[stride]) for stride in strides}
    for fine, coarse in zip(strides[-2::-1], strides[:0:-1], strict=True):
        raised = layers.UpSampling2D(2)(sums[coarse])
        rows, columns = sums[fine].shape[1:3]
        # If the stride does not divide the image, the raised features have a row or column more, or less.
        if raised.shape[1:3] != (rows, columns):
            raised = layers.Resizing(rows, columns, interpolation="nearest")(sums[coarse])
        sums[fine] = layers.Add()([sums[fine], raised])
    return [conv(sums[stride], width) for stride in strides]


class _Head:
    """The convolutions that all levels share; each level has its own normalisation, as their statistics differ."""

    def __init__(self, classes: int, width: int) -> None:
        self._classes = classes
        self._towers = {
            kind: [
                layers.Conv2D(
                    width, 3, padding="same", use_bias=False, kernel_initializer="he_normal", name=f"{kind}_{number}"
                )
                for number in range(_HEAD_LAYERS)
            ]
            for kind in ("class", "side")
        }
        small = keras.initializers.RandomNormal(stddev=0.01)
        bias = keras.initializers.Constant(-math.log((1 - _PRIOR) / _PRIOR))
        self._logits = layers.Conv2D(
            classes, 3, padding="same", kernel_initializer=small, bias_initializer=bias, name="logits", dtype="float32"
        )
        self._sides = layers.Conv2D(4, 3, padding="same", kernel_initializer=small, name="sides", dtype="float32")

    def answers(self, values: Any, level: Level) -> Any:
        """Gives the candidates of a level, float32 [rows, locations, 4 + classes]."""
        towers = {}
        for kind, convolutions in self._towers.items():
            towers[kind] = values
            for convolution in convolutions:
                normal = layers.BatchNormalization(momentum=_MOMENTUM)(convolution(towers[kind]))
                towers[kind] = layers.ReLU()(normal)
        sides = layers.Activation("softplus", dtype="float32")(self._sides(towers["side"]))
        logits = layers.Reshape((-1, self._classes), dtype="float32")(self._logits(towers["class"]))
        corners = layers.Reshape((-1, 4), dtype="float32")(_corners(sides, level))
        return layers.Concatenate(axis=-1, dtype="float32")([corners, logits])


def _corners(sides: Any, level: Level) -> Any:
    """Turns distances from each location to the left, top, right and bottom side into corners in pixels."""
    ones = ops.ones_like(sides[..., :1])
    x = (ops.cumsum(ones, axis=2) - 0.5) * level.step_x + level.left
    y = (ops.cumsum(ones, axis=1) - 0.5) * level.step_y + level.top
    reach_x, reach_y = level.step_x * _STRIDES_PER_UNIT, level.step_y * _STRIDES_PER_UNIT
    return ops.concatenate(
        [
            x - sides[..., 0:1] * reach_x,
            y - sides[..., 1:2] * reach_y,
            x + sides[..., 2:3] * reach_x,
            y + sides[..., 3:4] * reach_y,
        ],
        axis=-1,
    )
