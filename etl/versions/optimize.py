"""Compacts the small data files that streams of small ingests leave, as one commit that changes no row."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...results import ReadableResult
from ...spark.port import settings_of
from ...table import Table
from ..commit.transaction import OPTIMIZE, noted, user_name, write_note
from ..model import schema
from ..spark.catalog import require_delta_table, sql_name
from ..spark.failures import conflicts_named, naming_failures
from ..spark.writing_session import writing_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LARGEST_FILE = "spark.databricks.delta.optimize.maxFileSize"
_SMALL_FILE = "spark.databricks.delta.optimize.minFileSize"


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
    name, size = sql_name(table.location), str(schema.TARGET_FILE_BYTES)
    note = write_note(OPTIMIZE, user=user_name(), id=uuid.uuid4().hex)
    sizes = {_LARGEST_FILE: size, _SMALL_FILE: size}
    with noted(session, note), settings_of(session, sizes), conflicts_named(str(table)):
        metrics = session.sql(f"OPTIMIZE {name}").select("metrics.*").collect()[0]
    removed, added = int(metrics["numFilesRemoved"]), int(metrics["numFilesAdded"])
    version = int(session.sql(f"DESCRIBE HISTORY {name} LIMIT 1").collect()[0]["version"])
    return OptimizeResult(version, removed, added, committed=removed > 0)
