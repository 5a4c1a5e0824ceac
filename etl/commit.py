"""One batch becomes one Delta commit: rows, removals and properties together, or nothing.

Delta's public writers cannot change a table property and add rows in the same commit, nor tell whether a batch is empty
before it is committed. `open_transaction` therefore drives Delta's own transaction; where its classes have another name
(Databricks' runtime), the public writers do the same in two commits when a label is new.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import LakelensError, TableConflictError
from ..locations import absolute, has_scheme, is_table_name
from . import schema
from .conflicts import conflicts_named
from .opening import log_of, open_log
from .public_commit import PublicTransaction, create_by_public_writer
from .transaction import APPLICATION_ID, Batch, Committed, Transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# So much of a condition is told in the history: thousands of paths would be read whenever the log is.
_MOST_TOLD = 1000


def open_transaction(spark: SparkSession, path: str) -> Transaction:
    """Opens a transaction on the Delta table at `path`, at its latest version."""
    if _has_delta_classes(spark):
        return _DeltaTransaction(spark, path)
    return PublicTransaction(spark, path)


def create_image_table(spark: SparkSession, location: str, batch: Batch) -> Committed:
    """Makes an image table whose version 0 holds a batch, which deletes nothing.

    Files that a writer has left that died before its commit stay where they are, for VACUUM to take. Without Delta's
    own classes, or by a catalog's name, the table is made by Delta's public writer, which wants an empty path.

    Raises:
        TableConflictError: If the table is there already: another writer has made it meanwhile.
    """
    if not is_table_name(location) and _has_delta_classes(spark):
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

    def commit(self, batch: Batch) -> Committed:
        with conflicts_named(f"{self.path}@{self.version}"):
            number = self._last_number() + 1
            if self.version >= 0:
                self._set_properties(batch.properties)
                configuration = self._transaction.metadata().configuration()
            else:
                configuration = self._scala_map(batch.properties)
            mode = self._jvm.org.apache.spark.sql.SaveMode.valueOf("Append" if batch.is_append else "Overwrite")
            actions = self._written(batch, mode, configuration)
            files = [action for action in actions if action.getClass().getSimpleName() == "AddFile"]
            row_count = _row_count([file.stats() for file in files], batch.new_batch, is_append=batch.is_append)
            if not actions and self.version >= 0:
                return Committed(None, 0)
            note = batch.user_metadata if batch.before_commit is None else batch.before_commit(row_count)
            actions.append(
                self._jvm.org.apache.spark.sql.delta.actions.SetTransaction(APPLICATION_ID, number, self._none)
            )
            version = self._transaction.commit(self._sequence(actions), self._operation(mode, batch.delete_where, note))
            return Committed(int(version), row_count, self._rows_of(files) if batch.is_append else None)

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

    def _written(self, batch: Batch, mode: Any, configuration: Any) -> list[Any]:
        options: dict[str, str] = {}
        if batch.delete_where is not None:
            options["replaceWhere"] = batch.delete_where
        delta = self._jvm.org.apache.spark.sql.delta
        session = self._spark._jsparkSession
        writer = delta.commands.WriteIntoDelta(
            self._log,
            mode,
            delta.DeltaOptions(self._scala_map(options), session.sessionState().conf()),
            self._sequence(list(schema.PARTITION_COLUMNS)),
            configuration,
            batch.rows._jdf,
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


def _has_delta_classes(spark: SparkSession) -> bool:
    jvm: Any = spark._jvm
    try:
        return callable(jvm.org.apache.spark.sql.delta.DeltaLog.forTable)
    except (AttributeError, TypeError):
        return False
