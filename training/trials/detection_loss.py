"""The loss of a detector: which locations answer for which object, quality focal loss and generalised overlap.

Sources: X. Li et al., "Generalized Focal Loss", NeurIPS 2020 (the class answers with the box's overlap); H. Rezatofighi
et al., "Generalized Intersection over Union", CVPR 2019; centre sampling: Z. Tian et al., FCOS, ICCV 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
from keras import ops

from ..tasks.boxes import IGNORED, LABEL
from .detection_network import Level

# Locations within this number of steps of an object's middle answer for it.
_RADIUS = 1.5
# A level answers for objects of up to this many of its steps, the next one for larger ones.
_REACH = 8.0
_NO_BOX_AREA = 1e12
_EPSILON = 1e-6


@keras.saving.register_keras_serializable(package="lakelens")
class DetectionLoss(keras.losses.Loss):  # type: ignore[misc]
    """The loss of a model that gives [rows, candidates, 4 + classes], a candidate for each location of its levels.

    Labels are float32 [rows, boxes, 6]: xmin, ymin, xmax, ymax, class number (-1 fills up), 1 for an ignored object.
    Locations in an ignored object do not count as background. The sum over a batch is divided by its matched locations.
    """

    def __init__(self, levels: Sequence[Sequence[float]], box_weight: float = 2.0, **options: Any) -> None:
        super().__init__(**{"name": "detection", "reduction": "sum_over_batch_size", **options})
        self._levels = [list(level) for level in levels]
        self._box_weight = box_weight
        self._places, self._steps, self._sizes = _locations([Level(int(r), int(c), *o) for r, c, *o in levels])

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments."""
        return {**super().get_config(), "levels": self._levels, "box_weight": self._box_weight}

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Returns the loss of each row, float32 [rows]."""
        truths, answers = ops.cast(y_true, "float32"), ops.cast(y_pred, "float32")
        boxes, logits = answers[..., :4], answers[..., 4:]
        index, matched, masked = self._targets(truths)
        mine = ops.take_along_axis(truths, index[..., None], axis=1)
        overlap, generalised = _overlaps(boxes, mine[..., :4])
        count = ops.maximum(ops.sum(matched), 1.0)
        labels = ops.cast(ops.maximum(mine[..., LABEL], 0), "int32")
        quality = ops.stop_gradient(ops.clip(overlap, 0, 1))
        wanted = ops.one_hot(labels, logits.shape[-1]) * (matched * quality)[..., None]
        entropy = ops.binary_crossentropy(wanted, logits, from_logits=True)
        focal = entropy * ops.square(ops.abs(wanted - ops.sigmoid(logits)))
        classes = ops.sum(ops.sum(focal, axis=-1) * masked, axis=1) / count
        weight = matched * ops.maximum(quality, 0.1)  # at the start no box overlaps its object
        sides = ops.sum((1 - generalised) * weight, axis=1) / ops.maximum(ops.sum(weight), 1.0)
        return (classes + self._box_weight * sides) * ops.cast(ops.shape(truths)[0], "float32")

    def _targets(self, truths: Any) -> tuple[Any, Any, Any]:
        """Finds for each location its object's index, whether it has one, and whether it counts, [rows, locations]."""
        x, y = self._places[None, :, None, 0], self._places[None, :, None, 1]
        left, top, right, bottom = (truths[:, None, :, side] for side in range(4))
        inside = (x > left) & (x < right) & (y > top) & (y < bottom)
        near_x = ops.abs(x - (left + right) / 2) < _RADIUS * self._steps[None, :, None, 0]
        near_y = ops.abs(y - (top + bottom) / 2) < _RADIUS * self._steps[None, :, None, 1]
        size = ops.maximum(right - left, bottom - top)
        fits = (size > self._sizes[None, :, None, 0]) & (size <= self._sizes[None, :, None, 1])
        exists, ignored = truths[:, None, :, LABEL] >= 0, truths[:, None, :, IGNORED] > 0
        good = inside & near_x & near_y & fits & exists & ~ignored
        area = ops.where(good, (right - left) * (bottom - top), _NO_BOX_AREA)
        matched = ops.cast(ops.any(good, axis=-1), "float32")
        covered = ops.cast(ops.any(inside & exists & ignored, axis=-1), "float32")
        return ops.argmin(area, axis=-1), matched, ops.maximum(matched, 1 - covered)


def _locations(levels: Sequence[Level]) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Gives places (x, y), steps (x, y) and the sizes of objects (above, up to), each float32 [locations, 2]."""
    places, steps, sizes = [], [], []
    above = 0.0
    for number, level in enumerate(levels):
        rows, columns = np.mgrid[: level.rows, : level.columns] + 0.5
        x, y = columns * level.step_x + level.left, rows * level.step_y + level.top
        places.append(np.stack([x.ravel(), y.ravel()], axis=1))
        steps.append(np.broadcast_to([level.step_x, level.step_y], places[-1].shape))
        up_to = np.inf if number == len(levels) - 1 else _REACH * max(level.step_x, level.step_y)
        sizes.append(np.broadcast_to([above, up_to], places[-1].shape))
        above = up_to
    return tuple(np.concatenate(each).astype(np.float32) for each in (places, steps, sizes))  # type: ignore[return-value]


def _overlaps(boxes: Any, truths: Any) -> tuple[Any, Any]:
    """Returns intersection over union, and its generalised form, of boxes [..., 4] pair by pair."""

    def area(low: Any, high: Any) -> Any:
        sides = ops.maximum(high - low, 0)
        return sides[..., 0] * sides[..., 1]

    lows, highs = (boxes[..., :2], truths[..., :2]), (boxes[..., 2:], truths[..., 2:])
    shared = area(ops.maximum(*lows), ops.minimum(*highs))
    union = area(lows[0], highs[0]) + area(lows[1], highs[1]) - shared
    hull = area(ops.minimum(*lows), ops.maximum(*highs))
    overlap = shared / ops.maximum(union, _EPSILON)
    return overlap, overlap - (hull - union) / ops.maximum(hull, _EPSILON)
