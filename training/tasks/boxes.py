"""Boxes as arrays: their overlap, and the best of those that overlap; pure.

A box is xmin, ymin, xmax, ymax in pixels, half-open, the origin at the outer corner of the first pixel. A detection is
a box with its score and class number, a truth is a box with its class number and whether it is ignored: each is a row
of six numbers.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float32]
Flags: TypeAlias = npt.NDArray[np.bool_]

# Columns of a detection after its box, and of a truth after its box.
SCORE, DETECTED = 4, 5
LABEL, IGNORED = 4, 5
COLUMNS = 6
# The class number of a row that only fills an array up.
NO_BOX = -1
# Keeps the overlap of two boxes without area finite.
_LEAST_AREA = 1e-9


def area_of(boxes: Floats) -> Floats:
    """Returns the area of boxes [..., 4] in square pixels; 0 if a corner is out of order."""
    sides = np.maximum(boxes[..., 2:4] - boxes[..., :2], 0)
    area: Floats = sides[..., 0] * sides[..., 1]
    return area


def overlaps(boxes: Floats, truths: Floats, covers: Flags | None = None) -> Floats:
    """Returns intersection over union of each pair of boxes, [n, m]."""
    low = np.maximum(boxes[:, None, :2], truths[None, :, :2])
    high = np.minimum(boxes[:, None, 2:4], truths[None, :, 2:4])
    sides = np.maximum(high - low, 0)
    shared = sides[..., 0] * sides[..., 1]
    mine = area_of(boxes)[:, None]
    union = mine + area_of(truths)[None] - shared
    if covers is not None:
        union = np.where(covers[None], mine, union)
    share: Floats = shared / np.maximum(union, _LEAST_AREA)
    return share


def best_boxes(
    boxes: Floats, scores: Floats, *, most: int, least_score: float, overlap: float, considered: int
) -> Floats:
    """Keeps the boxes of an image that no better one of their class overlaps (greedy non-maximum suppression).

    Returns detections, float32 [most, 6], the best first, filled up with rows of zeros with class -1.
    """
    found = np.zeros((most, COLUMNS), np.float32)
    found[:, DETECTED] = NO_BOX
    where, labels = np.nonzero(scores >= least_score)
    values = scores[where, labels]
    # A stable order, so that equal scores give the same boxes in every batch.
    order = np.argsort(-values, kind="stable")[:considered]
    where, labels, values = where[order], labels[order], values[order]
    chosen = boxes[where]
    alive = (chosen[:, 2:] > chosen[:, :2]).all(axis=1)
    kept: list[int] = []
    for i in range(len(values)):
        if not alive[i]:
            continue
        kept.append(i)
        if len(kept) == most:
            break
        rivals = np.flatnonzero(alive[i + 1 :] & (labels[i + 1 :] == labels[i])) + i + 1
        if len(rivals):
            alive[rivals] = overlaps(chosen[i : i + 1], chosen[rivals])[0] <= overlap
    found[: len(kept)] = np.column_stack([chosen[kept], values[kept], labels[kept]])
    return found
