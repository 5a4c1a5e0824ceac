"""Rows that the driver has made as data frames of Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...spark.port import as_active_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ARROW_ENABLED = "spark.sql.execution.arrow.pyspark.enabled"


def local_frame(spark: SparkSession, rows: Sequence[tuple[Any, ...]], ddl: str) -> DataFrame:
    """Returns rows of the driver as a data frame that is part of the query's plan.

    Of a list, `createDataFrame` makes one whose rows pass through a Python worker on every executor, which only hands
    them on; a session that has not used one before starts it for that.

    Args:
        spark: A `writing_session`, in which `ARROW_ENABLED` holds; any session for zero rows.
        rows: The rows; None where a value is missing.
        ddl: Their columns, in the order of the values.
    """
    with as_active_session(spark):
        if not rows:
            return spark.createDataFrame([], ddl).limit(0)  # of which no task is left
        import pandas as pd

        # As objects: pandas would make floating-point numbers of a column of integers in which one is missing.
        return spark.createDataFrame(pd.DataFrame(rows, dtype=object), ddl)
