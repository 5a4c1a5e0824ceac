"""Appends predictions once, even if other jobs score the same table with the same model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import TableConflictError
from .predictions import PredictionsState, PredictionsTable
from .remaining import without

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Attempts can fail because another scoring job of the same model and table appends first.
_ATTEMPTS = 20


@dataclass(frozen=True)
class Added:
    """What one commit has added."""

    state: PredictionsState  # The state of the predictions table after it
    rows: int  # Rows
    errors: int  # How many of them have an error
    is_overtaken: bool  # Whether another job has added rows since the work was read


def append_once(
    results: PredictionsTable,
    rows: DataFrame,
    state: PredictionsState,
    *,
    note: str,
    done: Callable[[int], DataFrame],
    counts: tuple[int, int] | None = None,
) -> Added:
    """Adds rows in one commit, without those that another job has added since `state`."""
    counts = counts or count_rows(rows)
    for attempt in range(_ATTEMPTS):
        if counts[0] == 0:
            return Added(state, 0, 0, is_overtaken=True)
        state, is_added = results.append(rows, state, note)
        if is_added:
            return Added(state, *counts, is_overtaken=attempt > 0)
        if state.version is not None:
            rows = without(rows, done(state.version))
            counts = count_rows(rows)
    raise TableConflictError(
        f"{results.location}: other jobs that score the same table with the same model were faster {_ATTEMPTS} times; "
        "score again when they have ended; that scores the remaining rows"
    )


def count_rows(rows: DataFrame) -> tuple[int, int]:
    """Counts rows, and those with an error."""
    from pyspark.sql import functions

    count = functions.count(functions.lit(1)).alias("rows")
    found = rows.agg(count, functions.count("error").alias("errors")).collect()[0]
    return int(found["rows"]), int(found["errors"])
