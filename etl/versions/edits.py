"""What operations that change stored rows share: the open table, its checks, one commit with a note."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...errors import LakelensError, TableConflictError
from ...log.opening import open_table
from ...table import Table
from ..commit.known_classes import record_classes
from ..commit.notes import write_note
from ..commit.transaction import Batch, Transaction, require_columns, user_name
from ..images.recipe import Recipe
from ..model import schema
from ..spark.catalog import read_table, require_delta_table
from ..spark.local_frames import local_frame
from ..spark.path_forms import column_in_one_form
from ..spark.writing_session import writing_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class TableEdit:
    """An image table that is about to be changed."""

    spark: SparkSession  # A writing session
    table: Table  # The table
    transaction: Transaction  # A transaction at its latest version
    user: str = field(default_factory=user_name)  # Who changes it

    def rows(self) -> DataFrame:
        """Reads the transaction's version."""
        return read_table(self.spark, self.transaction.path, self.transaction.version)

    def commit(
        self,
        kind: str,
        stale: DataFrame,
        rows: DataFrame | None,
        counts: Mapping[str, int],
        renamed: tuple[str, str] | None = None,
        **noted: object,
    ) -> int:
        """Replaces the rows of some paths as one commit, which may rename a class; returns its version."""
        paths = stale.select(column_in_one_form(schema.PATH).alias(schema.PATH)).distinct()
        new = local_frame(self.spark, [], schema.ddl_of(schema.IMAGE_TABLE)) if rows is None else rows
        noted = noted if renamed is None else {**noted, "renamed": list(renamed)}
        # No other commit has the note, by which public writers find theirs.
        note = write_note(kind, user=self.user, id=uuid.uuid4().hex, **noted)
        version = self.transaction.commit(Batch(new, note, paths))
        if version is None:
            raise TableConflictError(f"{self.table}: the rows to be changed are gone; try again")
        record_classes(self.transaction.table, version, counts, renamed=renamed)
        return version

    def is_uncommitted(self, error: BaseException) -> bool:
        """Whether it is certain that a commit which ended in an error changed no row; an interrupted one still may."""
        if isinstance(error, TableConflictError):
            return True
        try:
            latest = open_table(self.transaction.table).version()
        except LakelensError:
            return False
        return isinstance(error, Exception) and latest == self.transaction.version


def open_edit(spark: SparkSession, table: Table) -> TableEdit:
    """Opens an image table to change stored rows."""
    session = writing_session(spark)
    require_delta_table(session, table.location)
    transaction = Transaction(session, table)
    Recipe.of_table(transaction.properties, str(table))
    require_columns(transaction)
    return TableEdit(session, table, transaction)
