"""Restores an old version: a new commit with exactly its rows, through Delta's RESTORE. Class numbers stay."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from ...errors import (
    DataFileError,
    NotAnImageTableError,
    TableConflictError,
    VersionFilesMissingError,
)
from ...ledger.store import read
from ...ledger.uses import reading
from ...log.data_files import require_files
from ...log.snapshot import Snapshot
from ...results import ReadableResult
from ...table import Table
from ..commit.known_classes import record_classes
from ..commit.notes import RESTORE, write_note
from ..commit.transaction import noted, noted_version, user_name
from ..images.recipe import Recipe
from ..spark.catalog import require_delta_table, resolved, sql_name
from ..spark.conflicts import RETRIES, conflicts_named
from ..spark.failures import naming_failures
from ..spark.writing_session import writing_session
from .changes import VersionDiff, diff
from .classes import class_counts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, repr=False)
class RestoreResult(ReadableResult):
    """The result of a restore.

    Attributes:
        version: The version that holds the restored rows: the table's latest.
        restored: Number of the version whose rows they are.
        added: Rows that came back, by class; all rows where the version before could not be compared.
        removed: Rows that went, by class.
        changed: Rows that have their old content or class again, by that class.
        user: Who restored.
        committed: Whether a new version was made; not when the table's rows were those already.
    """

    version: int
    restored: int
    added: dict[str, int]
    removed: dict[str, int]
    changed: dict[str, int]
    user: str
    committed: bool


@naming_failures
def restore(spark: SparkSession, table: Table, version: int | str | datetime) -> RestoreResult:
    """Makes a new version whose rows are exactly an old one's; the versions between stay in the history.

    The next ingest compares its source with the restored rows: it takes again what the restore has removed.

    Args:
        spark: The session.
        table: The table; its own version is not looked at.
        version: Number, time or pin of the version to bring back.

    Raises:
        NotADeltaTableError: If the table does not exist.
        NotAnImageTableError: If lakelens did not create it.
        VersionNotFoundError: If it has no such version.
        VersionFilesMissingError: If data files of the version are gone; names them, and the versions that are whole.
        TableConflictError: If other writers kept committing first, or a VACUUM was at work for ten minutes.
    """
    session = writing_session(spark)
    require_delta_table(session, table.location)
    return _Restore(session, table.location, resolved(session, table)).to(version)


def difference(table: Table, before: int, after: int) -> VersionDiff:
    """Compares the version before a restore with the one after it.

    A table may be restored because files of its latest version are gone, or because it was overwritten with other
    columns. There is nothing to compare with then, and every restored row counts as added.
    """
    try:
        return diff(table, before, after)
    except (VersionFilesMissingError, DataFileError, NotAnImageTableError):
        return VersionDiff(before, after, class_counts(table.at(after).snapshot()), {}, {})


@dataclass(frozen=True)
class _Restore:
    """One restore of a table, which Spark knows as `location`."""

    spark: SparkSession
    location: str
    table: Table
    user: str = field(default_factory=user_name)

    def to(self, version: int | str | datetime) -> RestoreResult:
        """Makes the commit that `restore` promises."""
        target, latest = self._open(version), self._open(None)
        Recipe.of_table({**target.configuration, **latest.configuration}, self.location)
        with reading(target.table, target.version, f"restore-{uuid.uuid4().hex}"):
            require_files(target)
            if set(target.files.paths) == set(latest.files.paths):
                return RestoreResult(latest.version, target.version, {}, {}, {}, self.user, committed=False)
            made = self._bring_back(target, latest.version)
        # Of a version that was not recorded, the next ingest looks at the rows.
        record_classes(self.table, made, read(self.table).counts_at(target.version))
        found = difference(self.table, made - 1, made)
        return RestoreResult(made, target.version, found.added, found.removed, found.changed, self.user, committed=True)

    def _open(self, version: int | str | datetime | None) -> Snapshot:
        snapshot = self.table.at(version).snapshot()
        snapshot.require_plain()  # two versions of the same files may differ in their deletion vectors
        return snapshot

    def _bring_back(self, target: Snapshot, latest: int) -> int:
        """Runs RESTORE; returns the number of its commit, which is above `latest`."""
        statement = f"RESTORE TABLE {sql_name(self.location)} TO VERSION AS OF {target.version}"

        def restored() -> str:
            note = write_note(RESTORE, restored=target.version, user=self.user, id=uuid.uuid4().hex)
            with noted(self.spark, note), conflicts_named(f"{self.location}@{target.version}"):
                self.spark.sql(statement).collect()
            return note

        gave_up = f"{self.location}: other writers kept committing first; restore again when they are done."
        return self._commit_of(RETRIES.run(restored, gave_up), latest)

    def _commit_of(self, note: str, latest: int) -> int:
        version = noted_version(self.spark, self.table, latest, note)
        if version is None:
            raise TableConflictError(
                f"{self.location}: the log has no commit of this restore; look at the history, and restore again"
            )
        return version
