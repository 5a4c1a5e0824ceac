"""Compares two models on the same rows: which answers changed, for better or worse, and in which classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ...errors import MissingDependencyError
from .metrics import per_class
from .result import TaskComparison

if TYPE_CHECKING:
    import pandas as pd

_ANSWERS = ("before", "after")


@dataclass(frozen=True)
class ClassChange:
    """One class under both models."""

    name: str  # The class
    label: int  # Its number
    support: int  # Rows whose true class it is
    recall_before: float | None  # Recall of the first model, 0..1; None without rows
    recall_after: float | None  # Recall of the second model
    fixed: int  # Rows that only the second model answers correctly
    broken: int  # Rows that only the first model answers correctly
    trained_before: int | None = None  # Training rows of the class in the first model's table version; None if unknown
    trained_after: int | None = None  # Training rows of the class in the second model's table version; None if unknown
    f1_before: float | None = None  # F1 of the first model, 0..1; None without rows
    f1_after: float | None = None  # F1 of the second model


@dataclass(frozen=True, repr=False)
class ModelComparison(TaskComparison):
    """How a second model's answers differ from a first one's."""

    rows: int  # Labelled rows that both models answered
    changed: int  # Rows whose answer differs
    fixed: int  # Rows that only the second model answers correctly
    broken: int  # Rows that only the first model answers correctly
    both_wrong: int  # Rows that both models answer incorrectly, with different answers
    # Of McNemar's exact test: the probability of a split of fixed and broken rows at least this uneven if both models
    # are equally good
    p_value: float
    classes: list[ClassChange]  # By label number
    most_improved_class: str | None  # The class with the most fixed minus broken rows; None if no class has gained
    _changed: ClassVar[str] = "{0.fixed} answers fixed, {0.broken} broken; p = {0.p_value:.2g} (McNemar)"


def compare(
    pairs: pd.DataFrame,
    names: Mapping[int, str],
    trained: tuple[Mapping[int, int] | None, Mapping[int, int] | None] = (None, None),
) -> ModelComparison:
    """Derives a comparison from counts of labelled rows."""
    numbers = pairs[["label", *_ANSWERS]].to_numpy(float)
    error = int(np.nanmin(numbers, initial=min([0, *names]))) - 1  # as an answer; no class has this number
    pairs = pairs.fillna(dict.fromkeys(_ANSWERS, error)).astype(int)
    rows = pairs["rows"]
    was_right, is_right = pairs["before"] == pairs["label"], pairs["after"] == pairs["label"]
    labels = sorted({*pairs["label"], *pairs["before"], *pairs["after"], *names} - {error})
    before, after = (per_class(pairs.rename(columns={when: "prediction"}), labels, names)[0] for when in _ANSWERS)
    counted = pairs[["label"]].assign(fixed=rows * (is_right & ~was_right), broken=rows * (was_right & ~is_right))
    counts = counted.groupby("label").sum().reindex(labels, fill_value=0)
    classes = [
        ClassChange(
            name=first.name,
            label=first.label,
            support=first.support,
            recall_before=first.recall,
            recall_after=second.recall,
            fixed=int(counts["fixed"][first.label]),
            broken=int(counts["broken"][first.label]),
            trained_before=None if trained[0] is None else trained[0].get(first.label, 0),
            trained_after=None if trained[1] is None else trained[1].get(first.label, 0),
            f1_before=first.f1,
            f1_after=second.f1,
        )
        for first, second in zip(before, after, strict=True)
    ]
    fixed, broken = int(counts["fixed"].sum()), int(counts["broken"].sum())
    changed = int(rows[pairs["before"] != pairs["after"]].sum())
    gained = max(classes, key=lambda one: one.fixed - one.broken, default=None)
    return ModelComparison(
        rows=int(rows.sum()),
        changed=changed,
        fixed=fixed,
        broken=broken,
        both_wrong=changed - fixed - broken,
        p_value=mcnemar(fixed, broken),
        classes=classes,
        most_improved_class=gained.name if gained is not None and gained.fixed > gained.broken else None,
    )


def mcnemar(fixed: int, broken: int) -> float:
    """Gives the p-value of McNemar's exact test: a binomial test of the rows that only one model answers correctly."""
    if fixed + broken == 0:
        return 1.0
    try:
        from scipy.stats import binomtest
    except ImportError as error:
        raise MissingDependencyError("McNemar's test needs SciPy: pip install 'lakelens[search]'") from error
    return float(binomtest(fixed, fixed + broken).pvalue)
