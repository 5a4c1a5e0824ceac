"""Counts what workers repaired, by path, so that a task that runs twice is counted once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pyspark.accumulators import AccumulatorParam

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator

Reasons = dict[str, list[str]]


class _ReasonsByPath(AccumulatorParam[Reasons]):  # type: ignore[misc]  # pyspark is not typed for mypy here
    """Joins what tasks tell; the last word on a path counts."""

    def zero(self, value: Reasons) -> Reasons:
        return {}

    def addInPlace(self, value1: Reasons, value2: Reasons) -> Reasons:
        value1.update(value2)
        return value1


def open_tally(context: SparkContext) -> Accumulator[Reasons]:
    """Gives an accumulator for `worker.BatchTask.problems`."""
    return context.accumulator({}, _ReasonsByPath())


def counts_of(tally: Accumulator[Reasons]) -> dict[str, int]:
    """Number of repaired and dropped boxes by reason, most frequent first."""
    return dict(Counter(reason for reasons in tally.value.values() for reason in reasons).most_common())
