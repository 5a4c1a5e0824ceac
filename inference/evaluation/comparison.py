"""Compares two models on the same rows: which answers changed, for better or worse, and in which classes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from ...errors import MissingDependencyError
from .result import TaskComparison

if TYPE_CHECKING:
    import pandas as pd

# An error as an answer; no class has this number.
_ERROR = -1


@dataclass(frozen=True)
class ClassChange:
    """One class under both models.

    Attributes:
        name: The class.
        label: Its number.
        support: Rows whose true class it is.
        recall_before: Recall of the first model, 0..1; None without rows.
        recall_after: Recall of the second model.
        fixed: Rows that only the second model answers correctly.
        broken: Rows that only the first model answers correctly.
        trained_before: Training rows of the class in the first model's table version; None if unknown.
        trained_after: Training rows of the class in the second model's table version; None if unknown.
        f1_before: F1 of the first model, 0..1; None without rows.
        f1_after: F1 of the second model.
    """

    name: str
    label: int
    support: int
    recall_before: float | None
    recall_after: float | None
    fixed: int
    broken: int
    trained_before: int | None = None
    trained_after: int | None = None
    f1_before: float | None = None
    f1_after: float | None = None


@dataclass(frozen=True, repr=False)
class ModelComparison(TaskComparison):
    """How a second model's answers differ from a first one's.

    Attributes:
        rows: Labelled rows that both models answered.
        changed: Rows whose answer differs.
        fixed: Rows that only the second model answers correctly.
        broken: Rows that only the first model answers correctly.
        still_wrong: Rows that both models answer incorrectly, with different answers.
        p_value: Of McNemar's exact test: the probability of a split of fixed and broken rows at least this uneven if
            both models are equally good.
        classes: By label number.
        most_improved_class: The class with the most fixed minus broken rows; None if no class has gained.
    """

    rows: int
    changed: int
    fixed: int
    broken: int
    still_wrong: int
    p_value: float
    classes: list[ClassChange]
    most_improved_class: str | None
    _changed: ClassVar[str] = "{0.fixed} answers fixed, {0.broken} broken; p = {0.p_value:.2g} (McNemar)"


def compare(
    pairs: pd.DataFrame,
    names: Mapping[int, str],
    trained: tuple[Mapping[int, int] | None, Mapping[int, int] | None] = (None, None),
) -> ModelComparison:
    """Derives a comparison from counts of labelled rows.

    Args:
        pairs: One row per combination of `label` and the two answers, `before` and `after` (null for an error); `rows`
            counts the table's rows with it.
        names: Class names by number.
        trained: Training rows by class number, of the first and of the second model; None if unknown.

    Raises:
        MissingDependencyError: If SciPy is not installed.
    """
    pairs = pairs.fillna({"before": _ERROR, "after": _ERROR}).astype(int)
    rows = pairs["rows"]
    was_right, is_right = pairs["before"] == pairs["label"], pairs["after"] == pairs["label"]
    counted = pairs[["label", "rows"]].assign(
        found_before=rows * was_right,
        found_after=rows * is_right,
        fixed=rows * (is_right & ~was_right),
        broken=rows * (was_right & ~is_right),
    )
    counts = counted.groupby("label").sum()
    counts = counts.reindex(sorted({*counts.index, *names}), fill_value=0).rename(columns={"rows": "support"})
    for when, of_class in zip(("before", "after"), trained, strict=True):
        found, answered = counts[f"found_{when}"], pairs.groupby(when)["rows"].sum()
        counts[f"recall_{when}"] = found / counts["support"]
        # 2 TP / (2 TP + FP + FN), where the denominator counts the class's rows and its answers.
        f1 = 2 * found / (counts["support"] + answered.reindex(counts.index, fill_value=0))
        counts[f"f1_{when}"] = f1.where(counts["support"] > 0)
        counts[f"trained_{when}"] = [None if of_class is None else of_class.get(label, 0) for label in counts.index]
    classes = [_class_change(names, one) for one in counts.reset_index().to_dict("records")]
    fixed, broken = int(counts["fixed"].sum()), int(counts["broken"].sum())
    changed = int(rows[pairs["before"] != pairs["after"]].sum())
    gained = max(classes, key=lambda one: one.fixed - one.broken, default=None)
    return ModelComparison(
        rows=int(rows.sum()),
        changed=changed,
        fixed=fixed,
        broken=broken,
        still_wrong=changed - fixed - broken,
        p_value=mcnemar(fixed, broken),
        classes=classes,
        most_improved_class=gained.name if gained is not None and gained.fixed > gained.broken else None,
    )


def _class_change(names: Mapping[int, str], counts: Mapping[str, Any]) -> ClassChange:
    known: dict[str, Any] = {}
    for name in (one.name for one in fields(ClassChange) if one.name != "name"):
        known[name] = None if counts[name] is None or math.isnan(counts[name]) else counts[name]
    return ClassChange(names.get(counts["label"], str(counts["label"])), **known)


def mcnemar(fixed: int, broken: int) -> float:
    """Gives the p-value of McNemar's exact test: a binomial test of the rows that only one model answers correctly."""
    if fixed + broken == 0:
        return 1.0
    try:
        from scipy.stats import binomtest
    except ImportError as error:
        raise MissingDependencyError("McNemar's test needs SciPy: pip install 'lakelens[search]'") from error
    return float(binomtest(fixed, fixed + broken).pvalue)
