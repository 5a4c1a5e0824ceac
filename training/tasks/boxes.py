"""Boxes as arrays: their overlap, the best of those that overlap, and detections that find an object; pure.

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
Matches: TypeAlias = npt.NDArray[np.int64]

# Columns of a detection after its box, and of a truth after its box.
SCORE, DETECTED = 4, 5
LABEL, IGNORED = 4, 5
COLUMNS = 6
# The class number of a row that only fills an array up.
NO_BOX = -1
# Keeps the overlap of two boxes without area finite.
_LEAST_AREA = 1e-9
# Intersection over union that a detection needs, as COCO has them; the first is Pascal VOC's.
THRESHOLDS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
# Columns of a match: class number, float32 score as an integer, and for each threshold a bit: found, ignored.
MATCHED, SCORE_BITS, HITS, SKIPPED = range(4)


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


def no_matches() -> Matches:
    """Returns the matches of no detections."""
    return np.zeros((0, 4), np.int64)


def matches_of(detections: Floats, truths: Floats) -> Matches:
    """Matches the detections of one image with its objects, class by class and threshold by threshold.

    The best detection takes the object that it overlaps most of those that no better one has taken. One without such an
    object is ignored if an ignored object covers enough of it; several may be ignored by the same object. This is the
    rule of COCO's evaluation (cocoapi, `cocoeval.py`, `evaluateImg`), where ignored objects are crowds.

    Returns int64 [detections, 4], see the columns above.
    """
    detections = detections[detections[:, DETECTED] > NO_BOX].astype(np.float64)  # an overlap of exactly 0.7 is 0.7
    truths = truths[truths[:, LABEL] > NO_BOX].astype(np.float64)
    detections = detections[np.argsort(-detections[:, SCORE], kind="stable")]
    found = np.zeros((len(detections), 4), np.int64)
    found[:, MATCHED] = detections[:, DETECTED]
    found[:, SCORE_BITS] = detections[:, SCORE].astype(np.float32).view(np.int32)
    for label in np.unique(found[:, MATCHED]):
        mine, theirs = found[:, MATCHED] == label, truths[truths[:, LABEL] == label]
        ignored = theirs[:, IGNORED] > 0
        shares = overlaps(detections[mine], theirs, ignored)
        hits, skipped = _greedy(shares[:, ~ignored], shares[:, ignored])
        bits = 1 << np.arange(len(THRESHOLDS))
        found[mine, HITS], found[mine, SKIPPED] = hits @ bits, skipped @ bits
    return found


def real_truths(truths: Floats, classes: int) -> npt.NDArray[np.int64]:
    """Counts the objects of each class that are not ignored, of truths float [..., 6]: int64 [classes]."""
    rows = truths.reshape(-1, truths.shape[-1])
    counted = rows[(rows[:, LABEL] > NO_BOX) & (rows[:, IGNORED] == 0), LABEL]
    return np.bincount(counted.astype(np.int64), minlength=classes).astype(np.int64)


def score_of(matches: Matches) -> Floats:
    """Returns the scores of matches."""
    return matches[:, SCORE_BITS].astype(np.int32).view(np.float32)


def flags_of(bits: npt.NDArray[np.int64], threshold: int) -> Flags:
    """Returns the flags of one threshold, by its number."""
    return (bits >> threshold & 1).astype(np.bool_)


def _greedy(shares: Floats, covered: Floats) -> tuple[Flags, Flags]:
    """Returns hits and ignored detections, bool [detections, thresholds], of one class; the best detection first."""
    least = np.array(THRESHOLDS)[:, None]
    taken = np.zeros((len(THRESHOLDS), shares.shape[1]), np.bool_)
    hits = np.zeros((len(shares), len(THRESHOLDS)), np.bool_)
    every = np.arange(len(THRESHOLDS))
    for i, share in enumerate(shares):
        free = np.where(taken, -1.0, share[None])
        if free.shape[1]:
            best = free.argmax(axis=1)
            hits[i] = free[every, best] >= least[:, 0]
            taken[every[hits[i]], best[hits[i]]] = True
    reach = covered.max(axis=1, initial=0.0)
    return hits, ~hits & (reach[:, None] >= least.T)
