"""One batch becomes one Delta commit: rows, removals and properties together, or nothing.

Delta's public writers cannot change a table property and add rows in the same commit, nor tell whether a batch is empty
before it is committed. `open_transaction` therefore drives Delta's own transaction; where its classes have another name
(Databricks' runtime), the public writers do the same in two commits when a label is new.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ...errors import InvalidArgumentError, LakelensError, TableConflictError
from ...locations import absolute, has_scheme, is_table_name
from ...spark.port import as_active_session
from ..files.driver_limits import MOST_ROWS, TooMuchError
from ..log.opening import log_of, open_log
from ..log.table_columns import open_columns
from ..model import schema
from ..spark.catalog import read_table
from ..spark.conflicts import conflicts_named
from ..spark.path_forms import array_in_one_form, column_in_one_form
from .public_commit import PublicTransaction, create_by_public_writer
from .transaction import APPLICATION_ID, Batch, Committed, Transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Set to `public`, lets Delta's public writers commit where its own classes could.
ENGINE_VARIABLE, PUBLIC = "LAKELENS_COMMIT_ENGINE", "public"

_KEY = "path_in_one_form"


def open_transaction(spark: SparkSession, path: str) -> Transaction:
    """Opens a transaction on the Delta table at `path`, at its latest version.

    Raises:
        InvalidArgumentError: If the environment names an engine that does not exist.
    """
    if _drives_delta(spark):
        return _DeltaTransaction(spark, path)
    return PublicTransaction(spark, path)


def create_image_table(spark: SparkSession, location: str, batch: Batch) -> Committed:
    """Makes an image table whose version 0 holds a batch, which deletes nothing.

    Files that a writer has left that died before its commit stay where they are, for VACUUM to take. Without Delta's
    own classes, or by a catalog's name, the table is made by Delta's public writer.

    Raises:
        TableConflictError: If the table is there already: another writer has made it meanwhile.
    """
    if not is_table_name(location) and _drives_delta(spark):
        transaction = _DeltaTransaction(spark, location)
        if transaction.version >= 0:
            raise TableConflictError(f"another writer has made {location} meanwhile, and is at {transaction.version}")
        return transaction.commit(batch)
    return create_by_public_writer(spark, location, batch)


class _DeltaTransaction:
    """Drives `org.apache.spark.sql.delta.OptimisticTransaction`; its shape is that of Delta 3.3 and 4.0."""

    asks_before_commit = True

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self.path = path
        self._jvm: Any = spark._jvm
        self._log = self._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)
        self._none = self._jvm.scala.Option.empty()
        self._transaction = self._log.startTransaction(self._none, self._none)
        self.version = int(self._transaction.readVersion())

    def property(self, name: str) -> str | None:
        value = self._transaction.metadata().configuration().get(name)
        return str(value.get()) if value.isDefined() else None

    def columns(self) -> list[str]:
        return list(self._transaction.metadata().schema().fieldNames())

    def commit(self, batch: Batch) -> Committed:
        with conflicts_named(f"{self.path}@{self.version}"):
            number = self._last_number() + 1
            if self.version >= 0:
                self._set_properties(batch.properties)
                configuration = self._transaction.metadata().configuration()
            else:
                configuration = self._scala_map(batch.properties)
            replaced = [] if batch.stale is None else self._without(batch.stale)
            actions = self._written(batch.rows, configuration)
            files = [action for action in actions if action.getClass().getSimpleName() == "AddFile"]
            row_count = _row_count([file.stats() for file in files])
            actions += replaced
            if not actions and self.version >= 0:
                return Committed(None, 0)
            note = batch.user_metadata if batch.before_commit is None else batch.before_commit(row_count)
            actions.append(
                self._jvm.org.apache.spark.sql.delta.actions.SetTransaction(APPLICATION_ID, number, self._none)
            )
            operation = self._operation(note, is_append=not replaced)
            version = self._transaction.commit(self._sequence(actions), operation)
            return Committed(int(version), row_count, None if replaced else self._rows_of(files))

    def _without(self, stale: DataFrame) -> list[Any]:
        """Writes the files that hold rows of some paths anew without these, and gives the actions that replace them.

        Delta's own DELETE and `replaceWhere` would have all paths in one condition on the driver.
        """
        from pyspark.sql import DataFrame
        from pyspark.sql import functions as F

        counts = self._stale_rows(stale)
        if not counts:
            return []
        files = {unquote(file.path()).rpartition("/")[2]: file for file in _items(self._transaction.filterFiles())}
        if not counts.keys() <= files.keys():
            raise TableConflictError(f"{self.path}@{self.version}: Delta's log names other files than Spark has read")
        others = [files[name] for name, count in counts.items() if _number_of_rows(files[name]) != count]
        kept: list[Any] = []
        if others:
            # Delta writes files by the settings of the session that was active when it made the frame.
            with as_active_session(self._spark):
                frame = self._log.createDataFrame(
                    self._transaction.snapshot(), self._sequence(others), False, self._none
                )
            # Broadcast, because the other side of the join has the images.
            rest = DataFrame(frame, self._spark).withColumn(_KEY, column_in_one_form(schema.PATH))
            stale = F.broadcast(stale.withColumnRenamed(schema.PATH, _KEY))
            kept = _items(self._transaction.writeFiles(rest.join(stale, _KEY, "left_anti").drop(_KEY)._jdf))
        now_ms = int(1000 * time.time())
        return [*kept, *(files[name].removeWithTimestamp(now_ms, True) for name in counts)]

    def _stale_rows(self, stale: DataFrame) -> dict[str, int]:
        """Number of rows of some paths by the name of their data file: counted by the driver, where they are few."""
        import pyarrow as pa
        import pyarrow.compute as pc

        try:
            files = open_columns(self._spark, self.path, [schema.PATH]).by_file(self.version)
            few = [] if files is None else stale.limit(MOST_ROWS + 1).collect()
        except TooMuchError:
            files, few = None, []
        if files is None or len(few) > MOST_ROWS:
            path = column_in_one_form(schema.PATH).alias(schema.PATH)
            rows = read_table(self._spark, self.path, self.version).select(path, "_metadata.file_name")
            found = rows.join(stale, schema.PATH, "left_semi").groupBy("file_name").count().collect()
            return {unquote(row["file_name"]): row["count"] for row in found}
        wanted = pa.array([row[0] for row in few], pa.string())
        counts = {}
        for name, rows in files.items():
            is_stale = pc.is_in(array_in_one_form(rows.column(schema.PATH)), value_set=wanted)
            counts[unquote(name).rpartition("/")[2]] = pc.sum(is_stale).as_py() or 0
        return {name: count for name, count in counts.items() if count}

    def _last_number(self) -> int:
        """Reads the last ingest's number, which makes Delta refuse this commit if another has written one since."""
        from py4j.protocol import Py4JError

        number = self._number_by_the_log()
        if number is None:
            return int(self._transaction.txnVersion(APPLICATION_ID))
        try:
            # What `txnVersion` notes; it would then have Spark compute the whole state of the version for one number.
            getattr(self._transaction.readTxn(), "$plus$eq")(APPLICATION_ID)
        except Py4JError:
            return int(self._transaction.txnVersion(APPLICATION_ID))
        return number

    def _number_by_the_log(self) -> int | None:
        """Reads the number without Spark; None where only Spark can."""
        if self.version < 0:
            return -1
        place = absolute(self.path)
        if has_scheme(place) or str(self._log.dataPath().toUri().getScheme()) != "file":
            return None
        try:
            with log_of(place) as log:
                number = open_log(place, log, self.version, {}).transaction_version(APPLICATION_ID)
        except (LakelensError, OSError):
            return None
        return -1 if number is None else int(number)

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

    def _written(self, rows: DataFrame, configuration: Any) -> list[Any]:
        delta = self._jvm.org.apache.spark.sql.delta
        session = self._spark._jsparkSession
        writer = delta.commands.WriteIntoDelta(
            self._log,
            self._jvm.org.apache.spark.sql.SaveMode.valueOf("Append"),
            delta.DeltaOptions(self._scala_map({}), session.sessionState().conf()),
            self._partition_columns(),
            configuration,
            rows._jdf,
            self._none,
            self._none,
        )
        return _items(writer.writeAndReturnCommitData(self._transaction, session, self._none, False).actions())

    def _operation(self, user_metadata: str, *, is_append: bool) -> Any:
        """What the history says of the commit."""
        some = self._jvm.scala.Some
        mode = self._jvm.org.apache.spark.sql.SaveMode.valueOf("Append" if is_append else "Overwrite")
        replaced = self._none if is_append else some(f"{schema.PATH} IN (files that have changed or gone)")
        return self._jvm.org.apache.spark.sql.delta.DeltaOperations.Write(
            mode, some(self._partition_columns()), replaced, some(user_metadata)
        )

    def _partition_columns(self) -> Any:
        if self.version >= 0:
            return self._transaction.metadata().partitionColumns()
        return self._sequence(list(schema.PARTITION_COLUMNS))

    def _scala_map(self, values: Mapping[str, str]) -> Any:
        return self._jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(dict(values))

    def _sequence(self, values: list[Any]) -> Any:
        java_list = self._jvm.java.util.ArrayList()
        for value in values:
            java_list.add(value)
        return self._jvm.org.apache.spark.api.python.PythonUtils.toSeq(java_list)


def _items(sequence: Any) -> list[Any]:
    """The values of a sequence of Scala."""
    values, iterator = [], sequence.iterator()
    while iterator.hasNext():
        values.append(iterator.next())
    return values


def _row_count(statistics: list[str | None]) -> int | None:
    """Counts rows by the statistics of their data files, JSON texts; None where Delta was told to collect none."""
    counts = [json.loads(text or "{}").get("numRecords") for text in statistics]
    return None if None in counts else sum(counts)


def _number_of_rows(file: Any) -> int | None:
    """Counts the rows of a data file; None where its log entry does not tell how many of them are left."""
    return None if file.deletionVector() is not None else _row_count([file.stats()])


def _drives_delta(spark: SparkSession) -> bool:
    """Whether Delta's own transaction commits, rather than its public writers."""
    engine = os.environ.get(ENGINE_VARIABLE, "")
    if engine not in ("", PUBLIC):
        raise InvalidArgumentError(f"{ENGINE_VARIABLE} = {engine!r} in the environment: set {PUBLIC!r}, or unset it")
    return not engine and _has_delta_classes(spark)


def _has_delta_classes(spark: SparkSession) -> bool:
    jvm: Any = spark._jvm
    try:
        return callable(jvm.org.apache.spark.sql.delta.DeltaLog.forTable)
    except (AttributeError, TypeError):
        return False
