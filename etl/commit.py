"""One batch becomes one Delta commit: rows, removals and properties together, or nothing.

Delta's public writers cannot change a table property and add rows in the same commit, nor tell whether a batch is empty
before it is committed. `open_transaction` therefore drives Delta's own transaction; where its classes have another name
(Databricks' runtime), the public writers do the same in two commits when a label is new.
"""

from __future__ import annotations

import contextlib
import getpass
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import TableConflictError
from ..locations import is_table_name
from . import schema
from .catalog import delta_table, read_table, sql_name
from .conflicts import conflicts_named

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Every ingest of a table writes the next number under this application id. Two that started from the same version can
# therefore not both commit, whatever files they bring.
APPLICATION_ID = "lakelens.ingest"

_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"

# So much of a condition is told in the history: thousands of paths would be read whenever the log is.
_MOST_TOLD = 1000

# How far back a commit of our own is looked for, behind those that were made since.
_RECENT = 100


@dataclass(frozen=True)
class Committed:
    """What a commit did.

    Attributes:
        version: The version that it made, or None when there was nothing to commit.
        rows: Number of rows that were brought to it, without those that were rewritten beside the ones that went; None
            where nothing tells them apart.
        added: Those rows, where the commit did nothing else; None where it may have, or no public call tells them.
    """

    version: int | None
    rows: int | None
    added: DataFrame | None = None


class Transaction(Protocol):
    """One attempt to write a batch, on top of one version."""

    version: int

    def property(self, name: str) -> str | None:
        """Reads a table property at that version."""

    def commit(
        self,
        rows: DataFrame,
        delete_where: str | None,
        properties: Mapping[str, str],
        user_metadata: str,
        new_batch: str | None = None,
    ) -> Committed:
        """Writes rows, drops those that `delete_where` holds for, and sets properties.

        Args:
            rows: Rows of `schema.IMAGE_TABLE_DDL`.
            delete_where: SQL condition of the rows that go, or None.
            properties: Table properties to set.
            user_metadata: What the history keeps of the commit.
            new_batch: The batch of all `rows`, when no row of the table is of it; at most 32 characters.

        Raises:
            TableConflictError: If another writer has changed the table in a way that rules this out.
        """


def open_transaction(spark: SparkSession, path: str) -> Transaction:
    """Opens a transaction on the Delta table at `path`, at its latest version."""
    if _has_delta_classes(spark):
        return _DeltaTransaction(spark, path)
    return _PublicTransaction(spark, path)


def create_image_table(
    spark: SparkSession, location: str, rows: DataFrame, properties: Mapping[str, str], user_metadata: str
) -> Committed:
    """Makes an image table whose version 0 holds `rows`.

    Files that a writer has left that died before its commit stay where they are, for VACUUM to take. Without Delta's
    own classes, or by a catalog's name, the table is made by Delta's public writer, which wants an empty path.

    Raises:
        TableConflictError: If the table is there already: another writer has made it meanwhile.
    """
    if not is_table_name(location) and _has_delta_classes(spark):
        transaction = _DeltaTransaction(spark, location)
        if transaction.version >= 0:
            raise TableConflictError(f"another writer has made {location} meanwhile, and is at {transaction.version}")
        return transaction.commit(rows, None, properties, user_metadata)
    return _create_by_public_writer(spark, location, rows, properties, user_metadata)


def _create_by_public_writer(
    spark: SparkSession, location: str, rows: DataFrame, properties: Mapping[str, str], user_metadata: str
) -> Committed:
    from pyspark.sql import functions as F

    partitions = [F.col(name) for name in schema.PARTITION_COLUMNS]
    writer = rows.writeTo(sql_name(location)).using("delta").partitionedBy(*partitions)
    for name, value in properties.items():
        writer = writer.tableProperty(name, value)
    with noted(spark, user_metadata), conflicts_named(f"{location} before it existed"):
        writer.create()
    return Committed(0, read_table(spark, location, 0).count())


class _DeltaTransaction:
    """Drives `org.apache.spark.sql.delta.OptimisticTransaction`; its shape is that of Delta 3.3 and 4.0."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = path
        self._jvm: Any = spark._jvm
        self._log = self._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)
        self._none = self._jvm.scala.Option.empty()
        self._transaction = self._log.startTransaction(self._none, self._none)
        self.version = int(self._transaction.readVersion())

    def property(self, name: str) -> str | None:
        value = self._transaction.metadata().configuration().get(name)
        return str(value.get()) if value.isDefined() else None

    def commit(
        self,
        rows: DataFrame,
        delete_where: str | None,
        properties: Mapping[str, str],
        user_metadata: str,
        new_batch: str | None = None,
    ) -> Committed:
        with conflicts_named(f"{self._path}@{self.version}"):
            # Reading the number makes Delta refuse this commit if another ingest has written one since.
            number = int(self._transaction.txnVersion(APPLICATION_ID)) + 1
            if self.version >= 0:
                self._set_properties(properties)
                configuration = self._transaction.metadata().configuration()
            else:
                configuration = self._scala_map(properties)
            mode = self._jvm.org.apache.spark.sql.SaveMode.valueOf("Append" if delete_where is None else "Overwrite")
            actions = self._written(rows, mode, delete_where, configuration)
            files = [action for action in actions if action.getClass().getSimpleName() == "AddFile"]
            row_count = _row_count([file.stats() for file in files], new_batch, is_append=delete_where is None)
            if not actions and self.version >= 0:
                return Committed(None, 0)
            actions.append(
                self._jvm.org.apache.spark.sql.delta.actions.SetTransaction(APPLICATION_ID, number, self._none)
            )
            version = self._transaction.commit(
                self._sequence(actions), self._operation(mode, delete_where, user_metadata)
            )
            return Committed(int(version), row_count, self._rows_of(files) if delete_where is None else None)

    def _rows_of(self, files: list[Any]) -> DataFrame | None:
        """The rows of some data files, read without asking Spark for the table's active files."""
        from py4j.protocol import Py4JError
        from pyspark.sql import DataFrame

        try:
            snapshot = self._log.unsafeVolatileSnapshot()
            frame = self._log.createDataFrame(snapshot, self._sequence(files), False, self._none)
        except Py4JError:  # a Delta that has another shape here must not make a failure of what is committed
            return None
        return DataFrame(frame, self._spark)

    def _set_properties(self, properties: Mapping[str, str]) -> None:
        metadata = self._transaction.metadata()
        configuration = metadata.configuration()
        if all(self.property(name) == value for name, value in properties.items()):
            return
        for name, value in properties.items():
            configuration = configuration.updated(name, value)
        changed = metadata.copy(
            metadata.id(),
            metadata.name(),
            metadata.description(),
            metadata.format(),
            metadata.schemaString(),
            metadata.partitionColumns(),
            configuration,
            metadata.createdTime(),
        )
        self._transaction.updateMetadata(changed, False)

    def _written(self, rows: DataFrame, mode: Any, delete_where: str | None, configuration: Any) -> list[Any]:
        options: dict[str, str] = {}
        if delete_where is not None:
            options["replaceWhere"] = delete_where
        delta = self._jvm.org.apache.spark.sql.delta
        session = self._spark._jsparkSession
        writer = delta.commands.WriteIntoDelta(
            self._log,
            mode,
            delta.DeltaOptions(self._scala_map(options), session.sessionState().conf()),
            self._sequence(list(schema.PARTITION_COLUMNS)),
            configuration,
            rows._jdf,
            self._none,
            self._none,
        )
        written = writer.writeAndReturnCommitData(self._transaction, session, self._none, False).actions().iterator()
        actions = []
        while written.hasNext():
            actions.append(written.next())
        return actions

    def _operation(self, mode: Any, delete_where: str | None, user_metadata: str) -> Any:
        """What the history says of the commit."""
        some = self._jvm.scala.Some
        if delete_where is not None and len(delete_where) > _MOST_TOLD:
            delete_where = f"{delete_where[:_MOST_TOLD]}..."
        return self._jvm.org.apache.spark.sql.delta.DeltaOperations.Write(
            mode,
            some(self._sequence(list(schema.PARTITION_COLUMNS))),
            self._none if delete_where is None else some(delete_where),
            some(user_metadata),
        )

    def _scala_map(self, values: Mapping[str, str]) -> Any:
        return self._jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(dict(values))

    def _sequence(self, values: list[Any]) -> Any:
        java_list = self._jvm.java.util.ArrayList()
        for value in values:
            java_list.add(value)
        return self._jvm.org.apache.spark.api.python.PythonUtils.toSeq(java_list)


class _PublicTransaction:
    """The same with Delta's public writers alone.

    Delta skips a write whose number is not above the last one of the application, and refuses one when another of the
    application was committed since it began. The number is therefore the one after the last that the version read has:
    of two that have read the same last ingest, one commits, whatever else was committed between.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = path
        self._table = delta_table(spark, path)
        self.version = self._latest()
        self._number = _last_number(spark, path, self.version) + 1
        self._properties = dict(self._table.detail().collect()[0]["properties"])

    def property(self, name: str) -> str | None:
        return self._properties.get(name)

    def commit(
        self,
        rows: DataFrame,
        delete_where: str | None,
        properties: Mapping[str, str],
        user_metadata: str,
        new_batch: str | None = None,
    ) -> Committed:
        latest = self._latest()
        if latest != self.version:
            # An append would not conflict with a RESTORE or DELETE that has changed what the plan was made for.
            raise TableConflictError(
                f"another writer was faster than the one that had read {self._path}@{self.version}: it is at {latest}"
            )
        with conflicts_named(f"{self._path}@{self.version}"):
            changed = {name: value for name, value in properties.items() if self._properties.get(name) != value}
            if changed:
                set_properties(self._spark, self._path, changed)
            self._write(rows, delete_where, user_metadata)
        for row in self._table.history(_RECENT).collect():
            if row["userMetadata"] == user_metadata:
                written = row["operationMetrics"].get("numOutputRows")
                return Committed(int(row["version"]), None if delete_where or written is None else int(written))
        raise TableConflictError(
            f"{self._path}: another ingest committed between version {self.version} and this one; run the ingest again"
        )

    def _latest(self) -> int:
        return int(self._table.history(1).collect()[0]["version"])

    def _write(self, rows: DataFrame, delete_where: str | None, user_metadata: str) -> None:
        writer = rows.write.format("delta").option("userMetadata", user_metadata)
        writer = writer.option("txnAppId", APPLICATION_ID).option("txnVersion", str(self._number))
        if delete_where is not None:
            writer = writer.mode("overwrite").option("replaceWhere", delete_where)
            writer = writer.option("spark.databricks.delta.replaceWhere.constraintCheck.enabled", "false")
        else:
            writer = writer.mode("append")
        writer.save(self._path)


@contextlib.contextmanager
def noted(spark: SparkSession, user_metadata: str) -> Iterator[None]:
    """Lets the commits of a block carry a note, where no option for it is read: when a table is made, and by SQL."""
    spark.conf.set(_USER_METADATA, user_metadata)
    try:
        yield
    finally:
        spark.conf.unset(_USER_METADATA)


def set_properties(spark: SparkSession, location: str, properties: Mapping[str, str]) -> None:
    """Sets properties of a Delta table, as a commit of its own."""
    pairs = ", ".join(f"{sql_literal(name)} = {sql_literal(value)}" for name, value in properties.items())
    spark.sql(f"ALTER TABLE {sql_name(location)} SET TBLPROPERTIES ({pairs})")


def user_name() -> str:
    """Names who commits, for the table's history."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return "unknown"


def _row_count(statistics: list[str | None], new_batch: str | None, *, is_append: bool) -> int | None:
    """Counts the new rows by the statistics of the data files, JSON texts: rewritten files have other batches."""
    total = 0
    for text in statistics:
        found = json.loads(text or "{}")
        batches = {found.get(bound, {}).get(schema.BATCH_ID) for bound in ("minValues", "maxValues")}
        if "numRecords" not in found or (not is_append and (new_batch is None or None in batches)):
            return None
        if is_append or batches == {new_batch}:
            total += int(found["numRecords"])
    return total


def _last_number(spark: SparkSession, path: str, version: int) -> int:
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


def _has_delta_classes(spark: SparkSession) -> bool:
    jvm: Any = spark._jvm
    try:
        return callable(jvm.org.apache.spark.sql.delta.DeltaLog.forTable)
    except (AttributeError, TypeError):
        return False


def sql_literal(text: str) -> str:
    """Writes a SQL string literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
