"""Deletes rows by a condition, and keeps their files out of later ingests until their content changes."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ...errors import LakelensError
from ...results import ReadableResult
from ...spark.port import kept
from ...table import Table
from ..commit.known_classes import count_classes, sound_classes, stored_classes
from ..commit.notes import DELETE
from ..model import schema
from ..quarantine.table import DELETED, Quarantine
from ..spark.conditions import check_condition, condition_named, rows_where
from ..spark.failures import naming_failures
from ..spark.path_forms import column_in_one_form
from .edits import open_edit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, repr=False)
class DeleteResult(ReadableResult):
    """The result of a deletion."""

    version: int  # The table's version that holds the result; the latest when no row met the condition
    deleted: dict[str, int] = field(default_factory=dict)  # Deleted rows by class
    committed: bool = False  # Whether a new version was made


@naming_failures
def delete(spark: SparkSession, table: Table, where: str) -> DeleteResult:
    """Deletes the rows that meet a condition, as one commit.

    Their files are listed in the quarantine table with the reason `deleted`. That entry is written first: if the
    process is killed between the two commits, the rows are still there, and the next ingest removes the entries. A
    deletion that fails removes them itself.
    """
    check_condition(where)
    edit = open_edit(spark, table)
    rows = edit.rows()
    small = [name for name in rows.columns if name not in (schema.IMAGE, schema.ANNOTATIONS)]
    with ExitStack() as stack:
        with condition_named(rows, where):
            found = stack.enter_context(kept(rows_where(rows, where).select(*small)))
            deleted = count_classes(found)
        if not deleted:
            return DeleteResult(edit.transaction.version)
        ledger = sound_classes(edit.spark, edit.transaction).ledger
        counts = Counter(stored_classes(edit.spark, edit.transaction, ledger))
        counts.subtract(deleted)
        quarantine = Quarantine(edit.spark, table)
        # No other deletion has the time.
        error = f"deleted by {edit.user} at {datetime.now(timezone.utc).isoformat()} where {where}"
        try:
            quarantine.record(_quarantined(found, error), None)
            version = edit.commit(DELETE, found, None, counts, where=where)
        except BaseException as failure:
            if edit.is_uncommitted(failure):
                with suppress(LakelensError):  # the commit's error is what matters
                    quarantine.forget(error)
            raise
    return DeleteResult(version, dict(sorted(deleted.items())), committed=True)


def _quarantined(rows: DataFrame, reason: str) -> DataFrame:
    from pyspark.sql import functions as F

    values = {
        schema.PATH: column_in_one_form(schema.PATH),
        "reason": F.lit(DELETED),
        "error": F.lit(reason),
    }
    names = schema.QUARANTINE.names
    return rows.select(*[values.get(name, F.col(name)).alias(name) for name in names])
