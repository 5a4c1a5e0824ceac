"""Two models on the same rows: which answers changed, for better or worse, and by which class; pure arithmetic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...errors import MissingDependencyError
from ...results import ReadableResult


class PairGroup(NamedTuple):
    """Rows with the same label and the same two answers; an answer of None is an error."""

    label: int
    before: int | None
    after: int | None
    rows: int


@dataclass(frozen=True)
class ClassChange:
    """One class under both models.

    Attributes:
        name: The class.
        label: Its number.
        support: Rows whose true class it is.
        recall_before: Share of them that the first model finds, 0..1; None without rows.
        recall_after: The same of the second model.
        mended: Rows that only the second model has right.
        broken: Rows that only the first model has right.
        trained_before: Training rows of the class in the first model's table version; None where not known.
        trained_after: The same of the second model's.
        f1_before: F1 of the first model, 0..1; None without rows.
        f1_after: The same of the second model.
    """

    name: str
    label: int
    support: int
    recall_before: float | None
    recall_after: float | None
    mended: int
    broken: int
    trained_before: int | None = None
    trained_after: int | None = None
    f1_before: float | None = None
    f1_after: float | None = None


@dataclass(frozen=True, repr=False)
class ModelComparison(ReadableResult):
    """How a second model's answers differ from a first one's.

    Attributes:
        rows: Labelled rows that both models were asked.
        changed: Rows whose answer differs.
        mended: Rows that only the second model has right.
        broken: Rows that only the first model has right.
        still_wrong: Rows that both models have wrong, with another answer.
        p_value: Of McNemar's exact test: how probable so uneven a split of mended and broken rows is if both models
            are equally good.
        classes: By label number.
        mended_class: The class with the most rows mended over those broken; None if no class has gained.
    """

    rows: int
    changed: int
    mended: int
    broken: int
    still_wrong: int
    p_value: float
    classes: list[ClassChange]
    mended_class: str | None


def compare_groups(
    groups: Sequence[PairGroup],
    names: Mapping[int, str],
    trained: tuple[Mapping[int, int] | None, Mapping[int, int] | None] = (None, None),
) -> ModelComparison:
    """Derives a comparison from groups of rows.

    Args:
        groups: The labelled rows.
        names: Class names by number.
        trained: Training rows by class number, of the first and of the second model; None where not known.

    Raises:
        MissingDependencyError: If SciPy is not installed.
    """
    support: Counter[int] = Counter()
    found_before: Counter[int] = Counter()
    found_after: Counter[int] = Counter()
    both: Counter[int] = Counter()
    answered_before: Counter[int | None] = Counter()
    answered_after: Counter[int | None] = Counter()
    for group in groups:
        was_right, is_right = group.before == group.label, group.after == group.label
        support[group.label] += group.rows
        found_before[group.label] += group.rows * was_right
        found_after[group.label] += group.rows * is_right
        both[group.label] += group.rows * (was_right and is_right)
        answered_before[group.before] += group.rows
        answered_after[group.after] += group.rows
    classes = []
    for label in sorted({*support, *names}):
        name, rows = names.get(label, str(label)), support[label]
        before, after = (None if one is None else one.get(label, 0) for one in trained)
        classes.append(
            ClassChange(
                name,
                label,
                rows,
                found_before[label] / rows if rows else None,
                found_after[label] / rows if rows else None,
                found_after[label] - both[label],
                found_before[label] - both[label],
                trained_before=before,
                trained_after=after,
                # 2 TP / (2 TP + FP + FN), where the denominator counts the class's rows and its answers.
                f1_before=2 * found_before[label] / (rows + answered_before[label]) if rows else None,
                f1_after=2 * found_after[label] / (rows + answered_after[label]) if rows else None,
            )
        )
    mended, broken = sum(one.mended for one in classes), sum(one.broken for one in classes)
    changed = sum(group.rows for group in groups if group.before != group.after)
    gained = max(classes, key=lambda one: one.mended - one.broken, default=None)
    return ModelComparison(
        rows=support.total(),
        changed=changed,
        mended=mended,
        broken=broken,
        still_wrong=changed - mended - broken,
        p_value=mcnemar(mended, broken),
        classes=classes,
        mended_class=gained.name if gained is not None and gained.mended > gained.broken else None,
    )


def mcnemar(mended: int, broken: int) -> float:
    """Gives the p-value of McNemar's exact test: a binomial test of the rows that only one model has right."""
    if mended + broken == 0:
        return 1.0
    try:
        from scipy.stats import binomtest
    except ImportError as error:
        raise MissingDependencyError("McNemar's test needs SciPy: pip install 'lakelens[search]'") from error
    return float(binomtest(mended, mended + broken).pvalue)
