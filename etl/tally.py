"""What workers tell of files, by path, so that a task that runs twice is counted once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from pyspark.accumulators import AccumulatorParam

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator


class _ByPath(AccumulatorParam[dict[str, Any]]):  # type: ignore[misc]  # pyspark is not typed for mypy here
    """Joins what tasks tell; the last word on a path counts, and paths beyond a bound are left out."""

    def __init__(self, most: int | None) -> None:
        self._most = most

    def zero(self, value: dict[str, Any]) -> dict[str, Any]:
        return {}

    def addInPlace(self, value1: dict[str, Any], value2: dict[str, Any]) -> dict[str, Any]:
        if self._most is None or len(value1) + len(value2) <= self._most:
            value1.update(value2)
        return value1


def open_tally(context: SparkContext, most: int | None = None) -> Accumulator[dict[str, Any]]:
    """Gives an accumulator for `worker.BatchTask`, of so many paths at most."""
    return context.accumulator({}, _ByPath(most))


def counts_of(tally: Accumulator[dict[str, list[str]]]) -> dict[str, int]:
    """Number of repaired and dropped boxes by reason, most frequent first."""
    return dict(Counter(reason for reasons in tally.value.values() for reason in reasons).most_common())
