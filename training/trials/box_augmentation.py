"""Random changes of images together with the boxes on them, in TensorFlow's graph."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import tensorflow as tf

from ...errors import InvalidHyperparameters
from ..tasks.boxes import IGNORED, LABEL

_GREY = 127.5
# Brightness changes by up to this many levels for `colour` 1.
_LEVELS = 100.0
# A box of which less is left in the image says too little about its class: it is ignored, not background.
_VISIBLE = 0.3


@dataclass(frozen=True)
class Augmentation:
    """The largest random changes of a training image; 0 and False change nothing."""

    flip: bool = True  # Whether half of the images are mirrored left to right
    shift: float = 0.06  # Shift of the image, as a part of its sides
    scale: float = 0.2  # Change of size: 0.25 shows it between 1/1.25 and 1.25 times as large
    crop: float = 0.0  # Part of the sides that is cut off
    colour: float = 0.4  # Change of contrast of each colour, and of brightness

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value <= (0.9 if field.name == "crop" else 1):
                raise InvalidHyperparameters(f"hyperparameter {field.name!r} is {value}; it is a part from 0 to 1")

    def apply(self, images: Any, boxes: Any, seed: Any) -> tuple[Any, Any]:
        """Changes a batch; the same seed gives the same changes."""
        seeds = tf.unstack(tf.random.split(seed, 6))
        if self.flip or self.shift or self.scale or self.crop:
            windows = self._windows(images, seeds)
            images, boxes = _seen_through(images, windows), moved_boxes(boxes, windows, images.shape[1:3])
        if self.colour:
            shape = (tf.shape(images)[0], 1, 1, 3)
            contrast = tf.random.stateless_uniform(shape, seeds[4], 1 - self.colour, 1 + self.colour)
            level = tf.random.stateless_uniform(shape, seeds[5], -1.0, 1.0) * (self.colour * _LEVELS)
            images = tf.clip_by_value((images - _GREY) * contrast + _GREY + level, 0.0, 255.0)
        return images, boxes

    def _windows(self, images: Any, seeds: list[Any]) -> Any:
        """Draws the part of each image that is shown: float32 [rows, 4], left, top, right, bottom in pixels."""
        rows, (height, width) = tf.shape(images)[0], images.shape[1:3]
        size = tf.constant([width, height], tf.float32)
        powers = tf.random.stateless_uniform((rows, 1), seeds[0], -1.0, 1.0)
        cut = tf.random.stateless_uniform((rows, 1), seeds[1], 0.0, self.crop) if self.crop else 0.0
        sides = size * (1 + self.scale) ** powers * (1 - cut)
        places = tf.random.stateless_uniform((rows, 2), seeds[2], -1.0, 1.0)
        middle = size / 2 + places * (tf.abs(size - sides) / 2 + self.shift * size)
        low, high = tf.unstack(middle - sides / 2, axis=1), tf.unstack(middle + sides / 2, axis=1)
        mirrored = tf.random.stateless_uniform((rows,), seeds[3]) < (0.5 if self.flip else 0.0)
        left, right = tf.where(mirrored, high[0], low[0]), tf.where(mirrored, low[0], high[0])
        return tf.stack([left, low[1], right, high[1]], axis=1)


def moved_boxes(boxes: Any, windows: Any, size: tuple[int, int]) -> Any:
    """Carries boxes into images that show a window of the old ones."""
    sides = tf.constant([size[1], size[0]], tf.float32)
    first, last = windows[:, None, :2], windows[:, None, 2:]
    corners = [(boxes[..., at : at + 2] - first) / (last - first) * sides for at in (0, 2)]
    low, high = tf.minimum(*corners), tf.maximum(*corners)
    seen_low, seen_high = tf.clip_by_value(low, 0.0, sides), tf.clip_by_value(high, 0.0, sides)
    seen = seen_high - seen_low
    area = tf.reduce_prod(high - low, axis=-1, keepdims=True)
    visible = tf.math.divide_no_nan(tf.reduce_prod(seen, axis=-1, keepdims=True), area)
    labels, ignored = boxes[..., LABEL : LABEL + 1], boxes[..., IGNORED : IGNORED + 1]
    kept = tf.reduce_all(seen >= 1.0, axis=-1, keepdims=True) & (labels >= 0)
    moved = tf.concat([seen_low, seen_high, labels, tf.where(visible < _VISIBLE, 1.0, ignored)], axis=-1)
    nothing = tf.constant([0, 0, 0, 0, -1, 0], tf.float32)
    return tf.where(kept, moved, nothing)


def _seen_through(images: Any, windows: Any) -> Any:
    """Shows windows of images at the images' own size; what lies outside is grey."""
    height, width = images.shape[1:3]
    left, top, right, bottom = tf.unstack(windows, axis=1)

    def sampled(first: Any, last: Any, side: int) -> tuple[Any, Any]:
        """Gives the centres of the first and last pixel as `crop_and_resize` has them: 0 to 1 from centre to centre."""
        half = (last - first) / (2 * side)
        return (first + half - 0.5) / (side - 1), (last - half - 0.5) / (side - 1)

    (x0, x1), (y0, y1) = sampled(left, right, width), sampled(top, bottom, height)
    places = tf.stack([y0, x0, y1, x1], axis=1)
    return tf.image.crop_and_resize(
        images, places, tf.range(tf.shape(images)[0]), (height, width), extrapolation_value=_GREY
    )
