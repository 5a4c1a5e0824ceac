"""Spark sessions for contenders: small, quiet, and with their files where they are cleaned up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakelens.log.snapshot import open_snapshot

from .contender import Contender

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER = "local[2]"
_DRIVER_MEMORY = "2g"


def settings(folder: Path, **conf: str) -> dict[str, str]:
    """Gives a session's settings, with its warehouse and scratch files below `folder`."""
    return {
        "spark.driver.memory": _DRIVER_MEMORY,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "spark"),
        "spark.ui.enabled": "false",
        **conf,
    }


def session(folder: Path, **conf: str) -> SparkSession:
    """Starts lakelens's Spark session."""
    from lakelens import spark_session

    spark = spark_session(MASTER, app_name="lakelens-benchmark", conf=settings(folder, **conf))
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class OnSpark:
    """A contender with its own Spark session."""

    def __init__(self, folder: str, **conf: str) -> None:
        self.folder = Path(folder)
        self.spark = session(self.folder, **conf)

    def close(self) -> None:
        """Ends the session."""
        self.spark.stop()


class Tables(OnSpark):
    """Writes the tables that contenders read."""

    def ingest(self, source: str, table: str, size: int, store: str) -> None:
        """Ingests photographs as one table."""
        from lakelens import ImageTable

        ImageTable(self.spark, table).ingest(source, layout="class_folders", size=size, store=store)

    def copy(self, table: str, target: str, files: int) -> None:
        """Writes images and labels as plain Parquet."""
        rows = self.spark.read.format("delta").load(table).select("image", "label").repartition(files)
        rows.write.option("compression", "uncompressed").option("parquet.block.size", 32 << 20).parquet(target)

    def repeat(self, table: str, target: str, rows: int) -> None:
        """Writes the rows of a table repeatedly under other paths, as a table with `rows` rows."""
        from pyspark.sql import functions

        kept = self.spark.read.format("delta").load(table)
        times = self.spark.range(-(-rows // kept.count()))
        path = functions.concat("path", functions.lit("?"), functions.col("id").cast("string"))
        longest = kept.crossJoin(times).withColumn("path", path).drop("id").limit(rows)
        longest.write.format("delta").option("maxRecordsPerFile", 1000).save(target)


def write_table(source: Path, table: Path, size: int, store: str = "jpeg") -> None:
    """Ingests photographs as one table."""
    with Contender(Tables, table.with_name(f"writing-{table.name}")) as tables:
        tables.call("ingest", source=str(source), table=str(table), size=size, store=store)


def stored_files(table: str) -> tuple[int, int]:
    """Counts rows and bytes of a Delta table's newest version, from its log."""
    from lakelens.table import Table

    snapshot = open_snapshot(Table.of(table))
    return int(snapshot.rows or 0), int(snapshot.files.sizes.sum())


def stored_columns(table: str | Path, *columns: str) -> list[list[Any]]:
    """Reads columns of a table's newest version into memory."""
    import pyarrow.dataset as ds

    rows = ds.dataset(data_files(table), format="parquet").to_table(columns=list(columns))
    return [rows[column].to_pylist() for column in columns]


def data_files(table: str | Path) -> list[str]:
    """Lists the data files of a Delta table's newest version."""
    from lakelens.table import Table

    snapshot = open_snapshot(Table.of(str(table)))
    return [snapshot.file_location(number) for number in range(len(snapshot.files))]
