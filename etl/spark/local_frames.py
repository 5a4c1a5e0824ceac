"""Rows that the driver has made as data frames of Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...errors import SessionError
from ...spark.port import as_active_session, is_connect

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

ARROW_ENABLED = "spark.sql.execution.arrow.pyspark.enabled"
# Of local rows, on serverless compute (Databricks, "Serverless compute limitations").
CONNECT_BYTES = 128_000_000


def local_frame(spark: SparkSession, rows: Sequence[tuple[Any, ...]], ddl: str) -> DataFrame:
    """Returns rows of the driver as a data frame that is part of the query's plan.

    Of a list, `createDataFrame` makes one whose rows pass through a Python worker on every executor, which only hands
    them on; a session that has not used one before starts it for that.
    """
    with as_active_session(spark):
        if not rows:
            return spark.createDataFrame([], ddl).limit(0)  # of which no task is left
        import pandas as pd

        # As objects: pandas would make floating-point numbers of a column of integers in which one is missing.
        frame = pd.DataFrame(rows, dtype=object)
        if is_connect(spark):
            _check_size(frame)
        return spark.createDataFrame(frame, ddl)


def _check_size(frame: pd.DataFrame) -> None:
    import pyarrow as pa

    size = pa.Table.from_pandas(frame, preserve_index=False).nbytes
    if size > CONNECT_BYTES:
        raise SessionError(
            f"{size / 1e6:.1f} MB of local rows, and a Spark Connect session takes at most {CONNECT_BYTES / 1e6:.0f} "
            "MB; give the file by a path that the workers can open, such as one of a volume, or use a classic session "
            "(dedicated compute)"
        )
