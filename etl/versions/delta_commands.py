"""Delta's RESTORE, after which class numbers stay, and its OPTIMIZE, each as one commit with a note of lakelens."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import DataFileError, NotAnImageTableError, TableConflictError, VersionFilesMissingError
from ...ledger.protection import reading
from ...ledger.store import read
from ...log.data_files import require_files
from ...log.snapshot import open_snapshot
from ...results import ReadableResult
from ...spark.port import settings_of
from ...table import Table, Version
from ..commit.known_classes import record_classes
from ..commit.transaction import OPTIMIZE, RESTORE, noted, noted_version, user_name, write_note
from ..images.recipe import Recipe
from ..model import schema
from ..spark.catalog import require_delta_table, resolved, sql_name
from ..spark.failures import RETRIES, conflicts_named, naming_failures
from ..spark.writing_session import writing_session
from .changes import VersionDiff, class_counts, diff

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_OPTIMIZED_SIZES = ("spark.databricks.delta.optimize.maxFileSize", "spark.databricks.delta.optimize.minFileSize")


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
    """Makes a new version whose rows are exactly an old one's; the next ingest takes again what this removes."""
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

        def restored() -> None:
            with noted(session, note), conflicts_named(f"{table.location}@{target.version}"):
                session.sql(f"RESTORE TABLE {sql_name(table.location)} TO VERSION AS OF {target.version}").collect()

        RETRIES.run(
            restored, f"{table.location}: other writers kept committing first; restore again when they are done."
        )
    made = noted_version(session, by_path, latest.version, note)
    if made is None:
        raise TableConflictError(
            f"{table.location}: the log has no commit of this restore; look at the history, and restore again"
        )
    # Of a version that was not recorded, the next ingest looks at the rows.
    record_classes(by_path, made, read(by_path).counts_at(target.version))
    found = difference(by_path, made - 1, made)
    return RestoreResult(made, target.version, found.added, found.removed, found.changed, user, committed=True)


def difference(table: Table, before: int, after: int) -> VersionDiff:
    """Compares two versions; every row counts as added if the first lacks files or columns, as before a restore."""
    try:
        return diff(table, before, after)
    except (VersionFilesMissingError, DataFileError, NotAnImageTableError):
        return VersionDiff(before, after, class_counts(open_snapshot(table.at(after))), {}, {})


@dataclass(frozen=True, repr=False)
class OptimizeResult(ReadableResult):
    """The result of a compaction."""

    version: int  # The table's latest version, which holds the result
    files_removed: int  # Data files that were replaced; they stay on disk for older versions until VACUUM
    files_added: int  # Data files that took their place
    committed: bool  # Whether a new version was made; not where nothing is to be gained


@naming_failures
def optimize(spark: SparkSession, table: Table) -> OptimizeResult:
    """Rewrites small data files of each split into files of about 128 MiB, with row groups as ingests write them."""
    session = writing_session(spark)
    require_delta_table(session, table.location)
    name = sql_name(table.location)
    note = write_note(OPTIMIZE, user=user_name(), id=uuid.uuid4().hex)
    sizes = dict.fromkeys(_OPTIMIZED_SIZES, str(schema.TARGET_FILE_BYTES))
    with noted(session, note), settings_of(session, sizes), conflicts_named(str(table)):
        metrics = session.sql(f"OPTIMIZE {name}").select("metrics.*").collect()[0]
    removed, added = int(metrics["numFilesRemoved"]), int(metrics["numFilesAdded"])
    version = int(session.sql(f"DESCRIBE HISTORY {name} LIMIT 1").collect()[0]["version"])
    return OptimizeResult(version, removed, added, committed=removed > 0)
