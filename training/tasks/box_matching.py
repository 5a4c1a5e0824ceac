"""Which detections of an image find one of its objects, by COCO's rule; pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .boxes import DETECTED, IGNORED, LABEL, NO_BOX, SCORE, Flags, Floats, overlaps

# Intersection over union that a detection needs, as COCO has them; the first is Pascal VOC's.
THRESHOLDS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
# Columns of a match: class number, float32 score as an integer, and for each threshold a bit: found, ignored.
MATCHED, SCORE_BITS, HITS, SKIPPED = range(4)

Matches = npt.NDArray[np.int64]


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
