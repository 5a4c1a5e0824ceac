"""What tasks report to the driver beside the rows that they write: repaired boxes, stored and lost files."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.accumulators import AccumulatorParam

from ...spark.port import counter

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import SparkSession


@dataclass
class Outcome:
    """What happened to files.

    Attributes:
        stored: Those that became rows, by class.
        lost: Those that had a row and will have none, by the row's class and the reason, for each task by its number.
    """

    stored: Counter[str] = field(default_factory=Counter)
    lost: dict[int, Counter[tuple[str, str]]] = field(default_factory=dict)


class _ByPath(AccumulatorParam[dict[str, Any]]):  # type: ignore[misc]  # pyspark is not typed for mypy here
    """Joins what tasks report: the last report on a path counts, and paths beyond a limit are left out."""

    def __init__(self, most: int | None) -> None:
        self._most = most

    def zero(self, value: dict[str, Any]) -> dict[str, Any]:
        return {}

    def addInPlace(self, value1: dict[str, Any], value2: dict[str, Any]) -> dict[str, Any]:
        if self._most is None or len(value1) + len(value2) <= self._most:
            value1.update(value2)
        return value1


class _Outcomes(AccumulatorParam[Outcome]):  # type: ignore[misc]  # as above
    """Adds up; of a task that ran again, the last report on lost files counts."""

    def zero(self, value: Outcome) -> Outcome:
        return Outcome()

    def addInPlace(self, value1: Outcome, value2: Outcome) -> Outcome:
        value1.stored.update(value2.stored)
        value1.lost.update(value2.lost)
        return value1


def open_tally(spark: SparkSession, most: int | None = None) -> Accumulator[dict[str, Any]]:
    """Returns an accumulator for `row_task.BatchTask`, of at most `most` paths."""
    return counter(spark, {}, _ByPath(most))


def open_outcome(spark: SparkSession) -> Accumulator[Outcome]:
    """Returns an accumulator for `row_task.BatchTask.outcome`."""
    return counter(spark, Outcome(), _Outcomes())


def counts_of(tally: Accumulator[dict[str, list[str]]]) -> dict[str, int]:
    """Number of repaired and dropped boxes by reason, most frequent first."""
    return dict(Counter(reason for reasons in tally.value.values() for reason in reasons).most_common())
