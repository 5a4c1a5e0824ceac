"""Metrics of a detector on a table version, and what changed against another one; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ...training.tasks.average_precision import (
    MEANS,
    ClassPrecision,
    OperatingPoint,
    PrecisionRecall,
    class_precisions,
    curve_at,
    mean_precisions,
)
from ...training.tasks.boxes import HITS, SKIPPED, Matches, flags_of, score_of
from .comparison import mcnemar
from .result import TaskComparison, TaskMetrics


@dataclass(frozen=True, repr=False)
class DetectionMetrics(TaskMetrics):
    """How well a model's detections match the annotated objects."""

    rows: int  # Annotated rows; an image without objects is one
    errors: int  # How many of those have an error instead of detections. All their objects count as missed
    unlabelled: int  # Rows without annotations; no other number counts them
    objects: int  # Objects of all classes, without difficult ones
    classes: list[ClassPrecision]  # Metrics per class, by label number
    # Precision over recall at an overlap of 0.5, of each class that has objects
    curves: Mapping[str, PrecisionRecall] = field(default_factory=dict, repr=False)
    # Where F1 at an overlap of 0.5 is highest, over all classes together; None if no object was found
    best_point: OperatingPoint | None = None

    @property
    def scores(self) -> dict[str, float]:
        """Means over the classes that have objects: mAP@0.5, COCO's mAP, recall; empty without objects."""
        return mean_precisions(self.classes) if self.objects else {}


@dataclass(frozen=True)
class DetectionChange:
    """One class under both models; None without objects."""

    name: str  # The class
    label: int  # Its number
    objects: int  # Its objects
    ap50_before: float | None  # Average precision of the first model at an overlap of 0.5
    ap50_after: float | None  # The same of the second model
    ap_before: float | None  # COCO's average precision of the first model
    ap_after: float | None  # The same of the second model
    recall50_before: float | None  # Recall of the first model at an overlap of 0.5
    recall50_after: float | None  # The same of the second model


@dataclass(frozen=True, repr=False)
class DetectionComparison(TaskComparison):
    """How a second model's detections differ from a first one's."""

    rows: int  # Annotated rows
    changed: int  # Rows with another number of mistakes
    fixed: int  # Rows in which the second model makes fewer mistakes
    broken: int  # Rows in which it makes more
    # Of a sign test: the probability of a split of fixed and broken rows at least this uneven if both models are
    # equally good
    p_value: float
    classes: list[DetectionChange]  # By label number
    # The class whose average precision at an overlap of 0.5 has risen most; None if none has
    most_improved_class: str | None
    _changed: ClassVar[str] = "fewer mistakes in {0.fixed} images, more in {0.broken}; p = {0.p_value:.2g} (sign test)"


def measure_detections(
    matches: Matches, objects: Mapping[int, int], names: Mapping[int, str], *, rows: int, errors: int, unlabelled: int
) -> DetectionMetrics:
    """Derives the metrics from the matches of all annotated rows."""
    count = max([*objects, *names, *matches[:, 0].tolist(), -1]) + 1
    listed = [names.get(label, str(label)) for label in range(count)]
    by_class = np.array([objects.get(label, 0) for label in range(count)], np.int64)
    counted = matches[~flags_of(matches[:, SKIPPED], 0)]
    total = int(by_class.sum())
    pooled = PrecisionRecall.of(score_of(counted), flags_of(counted[:, HITS], 0), total) if total else None
    return DetectionMetrics(
        rows=rows,
        errors=errors,
        unlabelled=unlabelled,
        objects=total,
        classes=class_precisions(matches, by_class, listed),
        curves={
            name: curve_at(matches, label, int(by_class[label])) for label, name in enumerate(listed) if by_class[label]
        },
        best_point=None if pooled is None else pooled.best_point(),
    )


def compare_detections(
    before: DetectionMetrics, after: DetectionMetrics, *, rows: int, fixed: int, broken: int
) -> DetectionComparison:
    """Compares two models that were measured on the same rows."""
    earlier = {one.label: one for one in before.classes}
    classes = [_change_of(earlier.get(one.label), one) for one in after.classes]
    gains = {
        one.name: one.ap50_after - one.ap50_before
        for one in classes
        if one.ap50_before is not None and one.ap50_after is not None
    }
    gained = max(gains, key=lambda name: gains[name], default=None)
    return DetectionComparison(
        rows=rows,
        changed=fixed + broken,
        fixed=fixed,
        broken=broken,
        p_value=mcnemar(fixed, broken),
        classes=classes,
        most_improved_class=gained if gained is not None and gains[gained] > 0 else None,
    )


def most_changed(classes: Sequence[DetectionChange], count: int) -> list[DetectionChange]:
    """Chooses the classes whose average precision at an overlap of 0.5 has changed most, in the given order."""

    def change(one: DetectionChange) -> float:
        return -abs((one.ap50_after or 0.0) - (one.ap50_before or 0.0))

    kept = {one.label for one in sorted(classes, key=change)[:count]}
    return [one for one in classes if one.label in kept]


def _change_of(before: ClassPrecision | None, after: ClassPrecision) -> DetectionChange:
    fields = ("ap50", "ap", "recall50")
    values = {f"{name}_before": None if before is None else getattr(before, name) for name in fields}
    values |= {f"{name}_after": getattr(after, name) for name in fields}
    return DetectionChange(after.name, after.label, after.objects, **values)


SCORES = tuple(MEANS)
