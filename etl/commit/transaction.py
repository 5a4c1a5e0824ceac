"""What a commit of a batch is, whoever drives it, and what its writers share."""

from __future__ import annotations

import contextlib
import getpass
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ...errors import NotAnImageTableError
from ..model import schema
from ..spark.catalog import sql_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Every ingest of a table writes the next number under this application id. Two that started from the same version can
# therefore not both commit, whatever files they bring.
APPLICATION_ID = "lakelens.ingest"

_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


@dataclass(frozen=True)
class Batch:
    """The contents of a commit.

    Attributes:
        rows: Rows of `schema.IMAGE_TABLE_DDL`.
        user_metadata: What the history keeps of the commit.
        stale: The paths, in the form of `path_forms`, whose rows go, as a column `path`; or None.
        properties: Table properties to set.
        before_commit: Called with the number of new rows, None if that is not known, once they are written and before
            they are committed: gives the text to use for `user_metadata`, or raises, and nothing is committed. Public
            writers do not call it.
    """

    rows: DataFrame
    user_metadata: str
    stale: DataFrame | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    before_commit: Callable[[int | None], str] | None = None


@dataclass(frozen=True)
class Committed:
    """The result of a commit.

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
    """One attempt to write a batch, on top of one version.

    Attributes:
        path: The table's path or URI.
        version: The version.
        asks_before_commit: Whether it calls `Batch.before_commit`.
    """

    path: str
    version: int
    asks_before_commit: bool

    def property(self, name: str) -> str | None:
        """Reads a table property at that version."""

    def columns(self) -> list[str]:
        """Names the table's columns at that version."""

    def commit(self, batch: Batch) -> Committed:
        """Writes the batch's rows, drops those of its `stale` paths, and sets its properties.

        Raises:
            TableConflictError: If another writer has changed the table in a way that rules this out.
        """


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


def sql_literal(text: str) -> str:
    """Writes a SQL string literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def require_columns(transaction: Transaction, location: str) -> None:
    """Checks that an image table has the columns that its rows are written to.

    Raises:
        NotAnImageTableError: If somebody has renamed or dropped one.
    """
    columns = transaction.columns()
    lacking = [name for name in schema.image_arrow_schema().names if name not in columns]
    if lacking:
        raise NotAnImageTableError(
            f"{location}@{transaction.version} has no column {lacking[0]!r} any more; its columns: "
            f"{', '.join(columns)}. If somebody has renamed it, rename it back: ALTER TABLE {sql_name(location)} "
            f"RENAME COLUMN ... TO {lacking[0]}; else restore a version that has it (`lakelens table restore`)"
        )
