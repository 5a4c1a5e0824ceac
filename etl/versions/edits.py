"""What operations that change stored rows share: the open table, its checks, one commit with a note."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...errors import NotADeltaTableError, TableConflictError
from ..commit.commit import open_transaction
from ..commit.known_classes import KnownClasses, count_classes, sound_classes
from ..commit.transaction import Batch, Transaction, noted, require_columns, set_properties, user_name
from ..images.recipe import RECIPE_PROPERTY, Recipe
from ..log.notes import write_note
from ..model import schema
from ..spark.catalog import is_delta_table, path_of, read_table
from ..spark.local_frames import local_frame
from ..spark.path_forms import column_in_one_form
from ..spark.writing_session import writing_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class TableEdit:
    """An image table that is about to be changed.

    Attributes:
        spark: A writing session.
        location: The table.
        transaction: A transaction at its latest version.
        user: Who changes it.
    """

    spark: SparkSession
    location: str
    transaction: Transaction
    user: str = field(default_factory=user_name)

    def rows(self) -> DataFrame:
        """Reads the transaction's version."""
        return read_table(self.spark, self.transaction.path, self.transaction.version)

    def classes(self) -> KnownClasses:
        """Returns class numbers and rows by class.

        Raises:
            ClassNumbersError: If two classes have one number, or one class two.
        """
        return sound_classes(self.spark, self.transaction, self.location)

    def counts(self, known: KnownClasses) -> Mapping[str, int]:
        """Rows by class of the transaction's version."""
        return count_classes(self.rows(), known.counts)

    def note(self, kind: str, labels: Mapping[str, int], counts: Mapping[str, int] | None, **others: object) -> str:
        """Writes the note of the commit, which no other commit has."""
        return write_note(kind, labels, counts, user=self.user, id=uuid.uuid4().hex, **others)

    def commit(
        self, note: str, stale: DataFrame, rows: DataFrame | None = None, properties: Mapping[str, str] | None = None
    ) -> int:
        """Replaces the rows of some paths as one commit; returns its version.

        Args:
            note: What the history says of it.
            stale: Rows of the table; every row of their paths goes.
            rows: What comes in their place.
            properties: Table properties to set.

        Raises:
            TableConflictError: If another writer was faster; nothing was committed.
        """
        paths = stale.select(column_in_one_form(schema.PATH).alias(schema.PATH)).distinct()
        new = local_frame(self.spark, [], schema.IMAGE_TABLE_DDL) if rows is None else rows
        version = self.transaction.commit(Batch(new, note, paths, properties or {})).version
        if version is None:
            raise TableConflictError(f"{self.location}: the rows to be changed are gone; try again")
        return version

    def commit_properties(self, note: str, properties: Mapping[str, str]) -> int:
        """Sets table properties where no row changes; returns the version of the commit."""
        with noted(self.spark, note):
            set_properties(self.spark, self.location, properties)
        return open_transaction(self.spark, self.transaction.path).version


def open_edit(spark: SparkSession, location: str) -> TableEdit:
    """Opens an image table to change stored rows.

    Raises:
        NotADeltaTableError: If there is no table.
        NotAnImageTableError: If lakelens did not create it.
    """
    session = writing_session(spark)
    if not is_delta_table(session, location):
        raise NotADeltaTableError(f"{location} holds no Delta table; ingest into it first, or check the path")
    transaction = open_transaction(session, path_of(session, location))
    recipe = transaction.property(RECIPE_PROPERTY)
    Recipe.of({} if recipe is None else {RECIPE_PROPERTY: recipe}, location)
    require_columns(transaction, location)
    return TableEdit(session, location, transaction)
