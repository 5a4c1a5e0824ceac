"""Commits a batch with Delta's public writers alone, where its own classes have another name.

A property and rows take two commits there, so a new label makes a version of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ...errors import TableConflictError
from ...locations import is_table_name
from ..model import schema
from ..spark.catalog import delta_table, is_delta_table, read_table, sql_name
from ..spark.conflicts import conflicts_named
from ..spark.path_forms import column_in_one_form
from .transaction import APPLICATION_ID, Batch, Committed, noted, set_properties

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# How far back a commit of our own is looked for, behind those that were made since.
_RECENT = 100
_KEY = "stale_path"
# Options of a session, where DML takes none of its own.
_APPLICATION, _NUMBER = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
_SHUFFLE, _PARTITIONS_OF_IMAGES = "spark.sql.shuffle.partitions", "200"


def create_by_public_writer(spark: SparkSession, location: str, batch: Batch) -> Committed:
    """Makes an image table whose version 0 holds a batch, which deletes nothing.

    Delta creates no table in a folder that holds what a writer left that died before its commit; it replaces that as if
    it were a table. Of two that do so at once the number of the ingest lets one commit.

    Raises:
        TableConflictError: If the table is there already.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    partitions = [F.col(name) for name in schema.PARTITION_COLUMNS]
    writer = batch.rows.writeTo(sql_name(location)).using("delta").partitionedBy(*partitions)
    for name, value in batch.properties.items():
        writer = writer.tableProperty(name, value)
    settings, read = {_APPLICATION: APPLICATION_ID, _NUMBER: "0"}, f"{location} before it existed"
    # Rows of a source that is a DataFrame belong to the session that made it, by whose settings Delta creates.
    owner = batch.rows.sparkSession
    with noted(owner, batch.user_metadata), _set(owner, settings), conflicts_named(read):
        try:
            writer.create()
        except AnalysisException:
            if is_table_name(location) or is_delta_table(spark, location):
                raise
            writer.createOrReplace()
    (first,) = delta_table(spark, location).history().where("version = 0").collect() or [None]
    if first is None or first["userMetadata"] != batch.user_metadata:
        raise TableConflictError(f"another writer has made {location} meanwhile")
    return Committed(0, read_table(spark, location, 0).count())


class PublicTransaction:
    """The same with Delta's public writers alone.

    Delta skips a write whose number is not above the last one of the application, and refuses one when another of the
    application was committed since it began. The number is therefore the one after the last that the version read has:
    of two that have read the same last ingest, one commits, whatever else was committed between.

    Of two that set properties at once, both succeed, and those of the later stand. The later one therefore stops, and
    plans again; the earlier one, whose rows are written to its own class numbers, sets them once more.
    """

    asks_before_commit = False

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self.path = path
        self._table = delta_table(spark, path)
        self.version = self._latest()
        self._number = last_number(spark, path, self.version) + 1
        self._properties = self._read_properties()

    def property(self, name: str) -> str | None:
        """Reads a table property at the transaction's version."""
        return self._properties.get(name)

    def columns(self) -> list[str]:
        """Names the table's columns at the transaction's version."""
        return list(read_table(self._spark, self.path, self.version).columns)

    def commit(self, batch: Batch) -> Committed:
        """Writes the batch; see `Transaction.commit`."""
        # An append would not conflict with a RESTORE or DELETE that has changed what the plan was made for.
        self._require_latest(self.version)
        with conflicts_named(f"{self.path}@{self.version}"):
            if batch.rows.isEmpty() and not self._holds(batch.stale):
                return Committed(None, 0)  # Delta would make a version of it
            known = self._properties
            changed = {name: value for name, value in batch.properties.items() if known.get(name) != value}
            if changed:
                set_properties(self._spark, self.path, changed)
                self._require_latest(self.version + 1)
            if batch.stale is None:
                self._append(batch)
            else:
                self._replace(batch, batch.stale)
        commits = self._table.history(_RECENT).collect()
        for row in commits:
            if row["userMetadata"] == batch.user_metadata:
                if changed and row == commits[0] and not changed.items() <= self._read_properties().items():
                    set_properties(self._spark, self.path, changed)
                metric = "numOutputRows" if batch.stale is None else "numTargetRowsInserted"
                written = row["operationMetrics"].get(metric)
                return Committed(int(row["version"]), None if written is None else int(written))
        raise TableConflictError(
            f"{self.path}: another ingest committed between version {self.version} and this one; run the ingest again"
        )

    def _holds(self, stale: DataFrame | None) -> bool:
        """Whether any row has one of these paths."""
        if stale is None:
            return False
        rows = read_table(self._spark, self.path, self.version)
        return not rows.select(column_in_one_form(schema.PATH).alias(schema.PATH)).join(stale, schema.PATH).isEmpty()

    def _require_latest(self, expected: int) -> None:
        latest = self._latest()
        if latest != expected:
            raise TableConflictError(
                f"another writer was faster than the one that had read {self.path}@{self.version}: it is at {latest}"
            )

    def _read_properties(self) -> dict[str, str]:
        return dict(self._table.detail().collect()[0]["properties"])

    def _latest(self) -> int:
        return int(self._table.history(1).collect()[0]["version"])

    def _append(self, batch: Batch) -> None:
        writer = batch.rows.write.format("delta").option("userMetadata", batch.user_metadata)
        writer = writer.option("txnAppId", APPLICATION_ID).option("txnVersion", str(self._number))
        writer.mode("append").save(self.path)

    def _replace(self, batch: Batch, stale: DataFrame) -> None:
        """Merges: a row without a key is new, whatever its path, and a key without a row deletes."""
        from pyspark.sql import functions as F

        names = batch.rows.columns
        new = batch.rows.withColumn(_KEY, F.lit(None).cast("string"))
        changes = new.unionByName(stale.select(F.col(schema.PATH).alias(_KEY)).distinct(), allowMissingColumns=True)
        settings = {_APPLICATION: APPLICATION_ID, _NUMBER: str(self._number), _SHUFFLE: _PARTITIONS_OF_IMAGES}
        is_stale = column_in_one_form(f"images.{schema.PATH}") == F.col(f"changes.{_KEY}")
        with noted(self._spark, batch.user_metadata), _set(self._spark, settings):
            (
                self._table.alias("images")
                .merge(changes.alias("changes"), is_stale)
                .whenMatchedDelete()
                .whenNotMatchedInsert(f"changes.{_KEY} IS NULL", {name: f"changes.{name}" for name in names})
                .execute()
            )


@contextlib.contextmanager
def _set(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Sets options of the session for a block."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)


def last_number(spark: SparkSession, path: str, version: int) -> int:
    """The number of the last ingest as of a version, or -1; no public call tells it, so Spark reads it from the log."""
    from pyspark.sql import functions as F

    log = f"{path.rstrip('/')}/_delta_log"
    reader = spark.read.schema("txn STRUCT<appId: STRING, version: BIGINT>")
    commits = reader.option("pathGlobFilter", "*.json").json(log)
    checkpoints = reader.option("pathGlobFilter", "*.checkpoint*.parquet").parquet(log)
    committed_by = F.regexp_extract("_metadata.file_name", r"^(\d{20})\.", 1).cast("bigint")
    numbers = [
        entries.where((F.col("txn.appId") == APPLICATION_ID) & (committed_by <= version)).agg(F.max("txn.version"))
        for entries in (commits, checkpoints)
    ]
    return max((row[0] for frame in numbers for row in frame.collect() if row[0] is not None), default=-1)
