"""Restores an old version: a new commit with exactly its rows, through Delta's RESTORE. Class numbers stay."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import (
    DataFileError,
    NotAnImageTableError,
    TableConflictError,
    VersionFilesMissingError,
)
from ...ledger.protection import reading
from ...ledger.store import read
from ...log.data_files import require_files
from ...log.snapshot import open_snapshot
from ...results import ReadableResult
from ...table import Table, Version
from ..commit.known_classes import record_classes
from ..commit.transaction import RESTORE, noted, noted_version, user_name, write_note
from ..images.recipe import Recipe
from ..spark.catalog import require_delta_table, resolved, sql_name
from ..spark.failures import RETRIES, conflicts_named, naming_failures
from ..spark.writing_session import writing_session
from .changes import VersionDiff, class_counts, diff

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, repr=False)
class RestoreResult(ReadableResult):
    """The result of a restore."""

    version: int  # The version that holds the restored rows: the table's latest
    restored: int  # Number of the version whose rows they are
    added: dict[str, int]  # Rows that came back, by class; all rows where the version before could not be compared
    removed: dict[str, int]  # Rows that went, by class
    changed: dict[str, int]  # Rows that have their old content or class again, by that class
    user: str  # Who restored
    committed: bool  # Whether a new version was made; not when the table's rows were those already


@naming_failures
def restore(spark: SparkSession, table: Table, version: Version) -> RestoreResult:
    """Makes a new version whose rows are exactly an old one's; the versions between stay in the history.

    The next ingest compares its source with the restored rows: it takes again what the restore has removed.
    """
    session, user = writing_session(spark), user_name()
    require_delta_table(session, table.location)
    by_path = resolved(session, table)
    target, latest = (open_snapshot(by_path.at(wanted)) for wanted in (version, None))
    for snapshot in (target, latest):
        snapshot.require_plain()  # two versions of the same files may differ in their deletion vectors
    Recipe.of_table({**target.configuration, **latest.configuration}, table.location)
    with reading(target.table, target.version, f"restore-{uuid.uuid4().hex}"):
        require_files(target)
        if set(target.files.paths) == set(latest.files.paths):
            return RestoreResult(latest.version, target.version, {}, {}, {}, user, committed=False)
        note = write_note(RESTORE, restored=target.version, user=user, id=uuid.uuid4().hex)
        _run(session, table.location, target.version, note)
    made = noted_version(session, by_path, latest.version, note)
    if made is None:
        raise TableConflictError(
            f"{table.location}: the log has no commit of this restore; look at the history, and restore again"
        )
    # Of a version that was not recorded, the next ingest looks at the rows.
    record_classes(by_path, made, read(by_path).counts_at(target.version))
    found = difference(by_path, made - 1, made)
    return RestoreResult(made, target.version, found.added, found.removed, found.changed, user, committed=True)


def _run(session: SparkSession, location: str, version: int, note: str) -> None:
    """Runs Delta's RESTORE until no other writer commits first."""

    def restored() -> None:
        with noted(session, note), conflicts_named(f"{location}@{version}"):
            session.sql(f"RESTORE TABLE {sql_name(location)} TO VERSION AS OF {version}").collect()

    RETRIES.run(restored, f"{location}: other writers kept committing first; restore again when they are done.")


def difference(table: Table, before: int, after: int) -> VersionDiff:
    """Compares the version before a restore with the one after it.

    A table may be restored because files of its latest version are gone, or because it was overwritten with other
    columns. There is nothing to compare with then, and every restored row counts as added.
    """
    try:
        return diff(table, before, after)
    except (VersionFilesMissingError, DataFileError, NotAnImageTableError):
        return VersionDiff(before, after, class_counts(open_snapshot(table.at(after))), {}, {})
