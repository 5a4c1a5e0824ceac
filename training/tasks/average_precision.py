"""Average precision and recall of detections, by the rules of Pascal VOC and COCO; pure.

Sources: M. Everingham et al., "The Pascal Visual Object Classes (VOC) Challenge", IJCV 2010 (11 points; later releases
take the area below the curve); T.-Y. Lin et al., "Microsoft COCO", ECCV 2014, and its `cocoeval.py` (101 points, mean
over ten thresholds). Detections are matched by COCO's rule in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .boxes import HITS, MATCHED, SKIPPED, THRESHOLDS, Flags, Floats, Matches, flags_of, score_of

_VOC_POINTS = np.linspace(0, 1, 11)
_COCO_POINTS = np.linspace(0, 1, 101)

Curve = npt.NDArray[np.float64]


@dataclass(frozen=True)
class OperatingPoint:
    """What the detections from a score on are worth."""

    score: float  # The least score
    f1: float  # Harmonic mean of precision and recall, 0..1
    precision: float  # Share of hits among these detections
    recall: float  # Share of the objects that they find


@dataclass(frozen=True)
class PrecisionRecall:
    """The curve of one class at one threshold, from the best detection to the worst."""

    scores: Floats  # Score of each detection that counts
    recall: Curve  # Share of the objects found down to that score, 0..1
    precision: Curve  # Share of hits among the detections down to that score, 0..1

    @classmethod
    def of(cls, scores: Floats, hits: Flags, objects: int) -> PrecisionRecall:
        """Orders detections of one class by score; of equal scores misses precede, whatever their order."""
        order = np.lexsort((hits, -scores.astype(np.float64)))
        found = np.cumsum(hits[order])
        return cls(scores[order], found / objects, found / np.arange(1, len(hits) + 1))

    @property
    def area(self) -> float:
        """Average precision as the area below the curve, precision made monotonic (VOC from 2010 on)."""
        recall = np.concatenate([[0.0], self.recall])
        return float(np.sum(np.diff(recall) * self._envelope()))

    @property
    def voc_2007(self) -> float:
        """Average precision as the mean of 11 points of recall (VOC until 2009)."""
        return float(self._at(_VOC_POINTS).mean())

    @property
    def coco(self) -> float:
        """Average precision as the mean of 101 points of recall."""
        return float(self._at(_COCO_POINTS).mean())

    def best_point(self) -> OperatingPoint | None:
        """Finds the score from which on F1 is highest; of equal ones the highest score. None without a hit."""
        both = self.precision + self.recall
        f1 = np.divide(2 * self.precision * self.recall, both, out=np.zeros_like(both), where=both > 0)
        # Of detections with one score the last has the highest F1, because misses precede: a score takes all of them.
        best = int(np.argmax(f1)) if len(f1) else 0
        if not len(f1) or not f1[best]:
            return None
        values = (self.scores[best], f1[best], self.precision[best], self.recall[best])
        return OperatingPoint(*map(float, values))

    def _envelope(self) -> Curve:
        """Returns for each detection the best precision at its recall or beyond."""
        return np.maximum.accumulate(self.precision[::-1])[::-1]

    def _at(self, points: Curve) -> Curve:
        places = np.searchsorted(self.recall, points, side="left")
        values: Curve = np.concatenate([self._envelope(), [0.0]])[places]
        return values


@dataclass(frozen=True)
class ClassPrecision:
    """How well one class is detected. Without objects, everything but the numbers is None."""

    name: str  # The class
    label: int  # Its number
    objects: int  # Objects of the class, without ignored ones
    detections: int  # Detections of the class, without those that an ignored object covers
    ap50: float | None = None  # Average precision at an overlap of 0.5, area below the curve
    ap50_voc07: float | None = None  # The same by VOC 2007's 11 points
    ap: float | None = None  # COCO's average precision: mean over overlaps from 0.5 to 0.95
    recall50: float | None = None  # Share of the objects found at an overlap of 0.5
    recall: float | None = None  # Mean of that over overlaps from 0.5 to 0.95


# Names of a detector's metrics, and the fields of a class that they are the mean of.
MEANS = {"map50": "ap50", "map50_voc07": "ap50_voc07", "map": "ap", "recall50": "recall50", "recall": "recall"}


def class_precisions(matches: Matches, objects: npt.NDArray[np.int64], names: Sequence[str]) -> list[ClassPrecision]:
    """Derives the metrics of each class from all detections, in any order."""
    return [_precision_of(name, label, matches, int(objects[label])) for label, name in enumerate(names)]


def mean_precisions(classes: Sequence[ClassPrecision]) -> dict[str, float]:
    """Averages over the classes that have objects; 0 if none has."""
    real = [each for each in classes if each.objects]
    return {
        name: float(np.mean([getattr(each, field) for each in real])) if real else 0.0 for name, field in MEANS.items()
    }


def curve_at(matches: Matches, label: int, objects: int, threshold: int = 0) -> PrecisionRecall:
    """Returns the curve of a class that has objects, at one of `THRESHOLDS` by its number."""
    mine = matches[matches[:, MATCHED] == label]
    counted = mine[~flags_of(mine[:, SKIPPED], threshold)]
    return PrecisionRecall.of(score_of(counted), flags_of(counted[:, HITS], threshold), objects)


def _precision_of(name: str, label: int, matches: Matches, objects: int) -> ClassPrecision:
    mine = matches[matches[:, MATCHED] == label]
    detections = int((~flags_of(mine[:, SKIPPED], 0)).sum())
    if objects == 0:
        return ClassPrecision(name, label, 0, detections)
    curves = [curve_at(mine, label, objects, threshold) for threshold in range(len(THRESHOLDS))]
    found = [float(curve.recall[-1]) if len(curve.recall) else 0.0 for curve in curves]
    return ClassPrecision(
        name,
        label,
        objects,
        detections,
        ap50=curves[0].area,
        ap50_voc07=curves[0].voc_2007,
        ap=float(np.mean([curve.coco for curve in curves])),
        recall50=found[0],
        recall=float(np.mean(found)),
    )
