"""Spark sessions for contenders: small, quiet, and with their files where they are cleaned up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER_MEMORY = "2g"


def session(folder: Path, master: str = "local[2]", **conf: str) -> SparkSession:
    """Starts lakelens's Spark session, with its warehouse and scratch files below `folder`."""
    from lakelens import spark_session

    settings = {
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "spark"),
        "spark.ui.enabled": "false",
        **conf,
    }
    spark = spark_session(master, app_name="lakelens-benchmark", conf=settings)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def tasks_so_far(spark: SparkSession) -> int:
    """Counts the tasks that the session's executors have finished."""
    store = spark.sparkContext._jsc.sc().statusStore()
    executors = store.executorList(False)
    return sum(int(executors.apply(i).totalTasks()) for i in range(executors.size()))


def stored_files(table: str) -> tuple[int, int, int]:
    """Counts files, rows and bytes of a Delta table's newest version, from its log."""
    from lakelens.table import Table

    snapshot = Table.of(table).snapshot()
    return len(snapshot.files), snapshot.rows, int(snapshot.files.sizes.sum())
