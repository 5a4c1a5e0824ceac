"""One batch becomes one Delta commit with a note, by Delta's public writers: an append, or a MERGE where rows go."""

from __future__ import annotations

import functools
import getpass
import json
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...errors import InvalidArgumentError, NotADeltaTableError, NotAnImageTableError, StoreError, TableConflictError
from ...locations import absolute_path, has_scheme, is_table_name
from ...log.entries import find_note
from ...log.opening import open_table, open_whole, uri_for_delta_rs
from ...log.snapshot import data_files_of
from ...spark.port import kept, option_of, settings_of
from ...stores.clients import require_known_store
from ...stores.data_files import local_form, unwritable_part
from ...table import Table
from ..annotations.record import encodable
from ..model import schema
from ..spark import catalog
from ..spark.catalog import column_in_one_form, is_delta_table, path_of, read_table, resolved, sql_name, temporary_view
from ..spark.failures import conflicts_named

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

INGEST, RESTORE, REPAIR = "ingest", "restore", "repair"
DELETE, RENAME, OPTIMIZE = "delete", "rename", "optimize"
_KINDS = (INGEST, RESTORE, REPAIR, DELETE, RENAME, OPTIMIZE)
# Commits of these leave every row as it was.
SAME_ROWS = frozenset({"OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES", "UNSET TBLPROPERTIES"})


def write_note(kind: str, **others: Any) -> str:
    """Writes the note of a commit."""
    texts = {name: encodable(value) if isinstance(value, str) else value for name, value in others.items()}
    return json.dumps({"lakelens": kind, **texts}, ensure_ascii=False)


def note_of(text: object) -> dict[str, Any]:
    """Reads the note of a commit; empty for other writers' words."""
    try:
        note = json.loads(str(text))
    except ValueError:
        return {}
    return note if isinstance(note, dict) and note.get("lakelens") in _KINDS else {}


def require_reachable(spark: SparkSession, table: Table, *, exists: bool) -> None:
    """Checks that delta-rs can open and write what Spark is about to write, before anything is written."""
    find_place = catalog.place_of_new if table.is_name and not exists else path_of
    location = find_place(spark, table.location)
    found = Table(absolute_path(location).rstrip("/") or "/", table.storage_options)
    require_writable(found)
    if not has_scheme(found.path):
        seen = catalog.place_to_spark(spark, found.path)
        if not is_same_place(found.path, seen):
            raise InvalidArgumentError(
                f"{table}: Spark takes this path for {seen}, and lakelens reads a table's log without Spark: it would "
                "take the path for a folder of this machine. Give the URI of a store that it reads, or file:/..."
            )
    try:
        open_table(found)
    except NotADeltaTableError:
        if exists:
            raise
    except StoreError as error:
        raise StoreError(
            f"{table}: lakelens reads a table's log without Spark, and only Spark reaches this place so far; tables "
            f"that the catalog manages, and keys in Hadoop's configuration, are for Spark alone. {error}"
        ) from error


def require_writable(table: Table) -> None:
    """Checks a path or URI by its letters alone."""
    location = table.path
    uri_for_delta_rs(table)
    if local_form(location) is None:
        require_known_store(location)
    # They end the path in a URI; no ingest has been tried there.
    part = unwritable_part(location) or next((letter for letter in "?#" if letter in location), None)
    if part is not None:
        raise InvalidArgumentError(
            f"{location}: no image table can be kept in a folder with {part!r} in its path; choose a folder without it"
        )


def is_same_place(path: str, seen: str | None) -> bool:
    """Whether a path of this machine is what Spark takes it for."""
    return seen is None or seen.startswith("file:") or local_form(seen) == path


# Every ingest of a table writes the next number under this application id.
APPLICATION_ID = "lakelens.ingest"

_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_KEY = "stale_path"
# Options of a session, because DML takes no options.
_APPLICATION, _NUMBER = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
_SHUFFLE, _MOST_SHUFFLED = "spark.sql.shuffle.partitions", 200
_ONE_TASK_A_SPLIT = "spark.databricks.delta.merge.repartitionBeforeWrite.enabled"
_COPY_SOURCE = "spark.databricks.delta.merge.materializeSource"
# Delta 4 refuses rows that Spark keeps, since they may come from several versions of a table. Ours are of one version.
_REFUSE_KEPT_SOURCE = "spark.databricks.delta.merge.failSourceCachedAfterMaterialization"
_DELETION_VECTORS = "spark.databricks.delta.merge.deletionVectors.persistent"


@dataclass(frozen=True)
class Batch:
    """The contents of a commit."""

    rows: DataFrame  # Rows of `schema.IMAGE_TABLE`; not empty unless `stale` is set
    user_metadata: str  # What the history keeps of the commit; no other commit has the same
    stale: DataFrame | None = None  # Paths whose rows go, as `column_in_one_form` makes them in a column `path`
    properties: Mapping[str, str] = field(default_factory=dict)  # Table properties of a table that is made


def create_image_table(spark: SparkSession, table: Table, batch: Batch) -> Table:
    """Makes an image table whose version 0 holds a batch, which deletes nothing; returns the table by its path."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    partitions = [F.col(name) for name in schema.PARTITION_COLUMNS]
    writer = batch.rows.writeTo(sql_name(table.location)).using("delta").partitionedBy(*partitions)
    for name, value in batch.properties.items():
        writer = writer.tableProperty(name, value)
    settings, read = {_APPLICATION: APPLICATION_ID, _NUMBER: "0"}, f"{table.location} before it existed"
    with noted(spark, batch.user_metadata), settings_of(spark, settings), conflicts_named(read):
        try:
            writer.create()
        except AnalysisException:
            if is_table_name(table.location) or is_delta_table(spark, table.location):
                raise
            # The folder holds files of a writer that died before its commit. Of two that replace them, one commits.
            writer.createOrReplace()
    made = resolved(spark, table)
    if noted_version(spark, made, -1, batch.user_metadata) != 0:
        raise TableConflictError(f"another writer has made {table.location} meanwhile")
    return made


class Transaction:
    """One attempt to write a batch, on top of the version that is the latest when it is opened."""

    def __init__(self, spark: SparkSession, table: Table) -> None:
        self._spark = spark
        self.path = path_of(spark, table.location)  # As Spark takes it; the catalog has resolved a name
        self.table = Table.of(self.path, None, table.storage_options)  # As delta-rs takes it
        self._opened = open_whole(self.table)
        self.version: int = self._opened.version()
        # Delta skips a write whose number is not above the last one of its application, and refuses one when another of
        # the application was committed since it began: of two that have read the same last ingest, one commits.
        last = self._opened.transaction_version(APPLICATION_ID)
        self._number = 0 if last is None else last + 1
        self.properties: Mapping[str, str] = self._opened.metadata().configuration
        self.columns = [column.name for column in self._opened.schema().fields]

    def rows(self) -> int | None:
        """Returns the rows of the version, or None when the log lacks the statistics of a file."""
        return data_files_of(self._opened, self.table).all_rows

    def commit(self, batch: Batch) -> int | None:
        """Writes the rows and drops those of `stale` paths; returns the new version, or None if there are neither."""
        # An append would not conflict with a RESTORE or DELETE that has changed what the plan was made for.
        self._require_latest()
        with ExitStack() as stack:
            stale = None if batch.stale is None else stack.enter_context(kept(self._as_stored(batch.stale)))
            write = functools.partial(self._append, batch)
            # Looking costs one small job; a MERGE that finds nothing to drop costs several.
            if stale is not None and not stale.isEmpty():
                write = functools.partial(self._replace, batch, stale)
            elif stale is not None and batch.rows.isEmpty():  # Delta would make a version of it
                return None
            with conflicts_named(f"{self.path}@{self.version}"):
                write()
        version = noted_version(self._spark, self.table, self.version, batch.user_metadata)
        if version is None:
            raise TableConflictError(
                f"{self.path}: another writer committed on top of version {self.version} first; nothing was committed, "
                "so run this again"
            )
        return version

    def _as_stored(self, stale: DataFrame) -> DataFrame:
        """Finds the paths that are to go, as the rows have them: a MERGE writes its whole condition into the log."""
        from pyspark.sql import functions as F

        rows = read_table(self._spark, self.path, self.version)
        paths = rows.select(F.col(schema.PATH).alias(_KEY), column_in_one_form(schema.PATH).alias(schema.PATH))
        return paths.join(stale, schema.PATH, "left_semi").select(_KEY).distinct()

    def _require_latest(self) -> None:
        self._opened.update_incremental()
        latest = self._opened.version()
        if latest != self.version:
            raise TableConflictError(
                f"another writer committed first; this one read {self.path}@{self.version}: the table is at {latest}"
            )

    def _append(self, batch: Batch) -> None:
        writer = batch.rows.write.format("delta").option("userMetadata", batch.user_metadata)
        writer = writer.option("txnAppId", APPLICATION_ID).option("txnVersion", str(self._number))
        writer.mode("append").save(self.path)

    def _replace(self, batch: Batch, stale: DataFrame) -> None:
        """Merges: a row without a key is new, whatever its path, and a key without a row deletes."""
        from pyspark.sql import functions as F

        names = batch.rows.columns
        new = batch.rows.withColumn(_KEY, F.lit(None).cast("string"))
        changes = new.unionByName(stale, allowMissingColumns=True)
        with (
            noted(self._spark, batch.user_metadata),
            settings_of(self._spark, self._merge_settings()),
            temporary_view(changes) as view,
        ):
            self._spark.sql(
                f"MERGE INTO {sql_name(self.path)} AS images USING {view} AS changes "  # noqa: S608  names alone
                f"ON images.{schema.PATH} = changes.{_KEY} WHEN MATCHED THEN DELETE "
                f"WHEN NOT MATCHED AND changes.{_KEY} IS NULL THEN INSERT ({', '.join(names)}) "
                f"VALUES ({', '.join(f'changes.{name}' for name in names)})"
            ).collect()

    def _merge_settings(self) -> dict[str, str]:
        """A MERGE shuffles the rows of the files that it rewrites: into one task for each file of the wished size."""
        usual = int(option_of(self._spark, _SHUFFLE, str(_MOST_SHUFFLED)))
        table_bytes = sum(self._opened.get_add_actions().column("size_bytes").to_pylist())
        tasks = max(usual, min(_MOST_SHUFFLED, math.ceil(table_bytes / schema.TARGET_FILE_BYTES)))
        return {
            _APPLICATION: APPLICATION_ID,
            _NUMBER: str(self._number),
            _SHUFFLE: str(tasks),
            _ONE_TASK_A_SPLIT: str(tasks == usual).lower(),  # however large the table is
            _COPY_SOURCE: "none",  # Spark keeps the rows already
            _REFUSE_KEPT_SOURCE: "false",
            _DELETION_VECTORS: "false",  # writing them, MERGE fails on Delta 3.3.3 with Spark 3.5.9
        }


def noted(spark: SparkSession, user_metadata: str) -> AbstractContextManager[None]:
    """Lets the commits of a block carry a note, where no option for it is read: when a table is made, and by SQL."""
    return settings_of(spark, {_USER_METADATA: user_metadata})


def noted_version(spark: SparkSession, table: Table, after: int, note: str) -> int | None:
    """Finds the version above `after` whose commit carries a note; None if there is none."""
    numbers = range(after + 1, open_table(table).version() + 1)
    version = find_note(table, numbers, note)
    if version is None and len(numbers) == 1:
        with noted(spark, "-"):
            takes_notes = option_of(spark, _USER_METADATA) == "-"
        if not takes_notes:  # serverless compute: the only newer version is this session's commit
            return numbers[0]
    return version


def user_name() -> str:
    """Names who commits, for the table's history."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return "unknown"


def require_columns(transaction: Transaction) -> None:
    """Checks that an image table has the columns that its rows are written to."""
    columns = transaction.columns
    lacking = [name for name in schema.IMAGE_TABLE.names if name not in columns]
    if lacking:
        raise NotAnImageTableError(
            f"{transaction.path}@{transaction.version} has no column {lacking[0]!r} any more; its columns: "
            f"{', '.join(columns)}. If somebody has renamed it, rename it back: ALTER TABLE "
            f"{sql_name(transaction.path)} RENAME COLUMN ... TO {lacking[0]}; else restore a version that has it "
            "(`lakelens table restore`)"
        )
