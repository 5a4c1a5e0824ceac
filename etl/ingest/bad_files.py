"""The files of an ingest that could not be stored, with their reasons, as rows of the quarantine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..commit.transaction import Committed
from ..model import schema
from ..quarantine.table import DOUBTFUL_REASONS
from ..spark.catalog import read_table
from ..spark.local_frames import local_frame
from .prepare import Prepared
from .row_task import BatchTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Tasks report at most so many bad files. With more, or where tasks ran twice, bad files are read once more.
MOST_TOLD = 50_000
# A file that is read again for its reason is alone in its Arrow batch.
_FILES_AT_ONCE = 1
_TOLD_DDL = schema.QUARANTINE_DDL.replace("TIMESTAMP", "BIGINT")
_REASON = schema.quarantine_arrow_schema().get_field_index("reason")


@dataclass(frozen=True)
class BadFiles:
    """Files for the quarantine.

    Attributes:
        frame: Rows of `schema.QUARANTINE_DDL`.
        reasons: Number of files by reason.
    """

    frame: DataFrame
    reasons: Mapping[str, int]


def find_bad_files(
    prepared: Prepared, task: BatchTask, committed: Committed, refused: Mapping[str, tuple[Any, ...]]
) -> BadFiles:
    """Finds the files that did not become rows.

    Args:
        prepared: The ingest.
        task: What its tasks know.
        committed: What was committed.
        refused: What its tasks have told in `BatchTask.refused`.
    """
    work = prepared.plan.work_files()
    if committed.rows is not None and committed.rows + len(refused) == prepared.plan.work:
        rows = [row for row in refused.values() if row[_REASON] not in DOUBTFUL_REASONS]
        doubtful = [(path,) for path, row in refused.items() if row[_REASON] in DOUBTFUL_REASONS]
        if doubtful:
            paths = local_frame(prepared.spark, doubtful, f"{schema.PATH} STRING")
            again = _read_again(prepared, task, work.join(paths, schema.PATH, "left_semi"))
            rows += [tuple(row) for row in _with_time_as_number(again).collect()]
        return BadFiles(_told(prepared.spark, rows), Counter(row[_REASON] for row in rows))
    if committed.version is not None:
        stored = read_table(prepared.spark, prepared.location, committed.version)
        stored = stored.where(stored[schema.BATCH_ID] == task.batch_id).select(schema.PATH)
        work = work.join(stored, schema.PATH, "left_anti")
    found = _read_again(prepared, task, work).persist()
    return BadFiles(found, {row["reason"]: row["count"] for row in found.groupBy("reason").count().collect()})


def _read_again(prepared: Prepared, task: BatchTask, files: DataFrame) -> DataFrame:
    read_contents = prepared.listing.read_contents
    if read_contents is not None:
        files = read_contents(files, _FILES_AT_ONCE)
    return files.mapInArrow(task.quarantined_rows, schema.QUARANTINE_DDL)


def _with_time_as_number(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.withColumn(schema.SOURCE_MODIFIED, F.unix_micros(schema.SOURCE_MODIFIED))


def _told(spark: SparkSession, rows: Sequence[tuple[Any, ...]]) -> DataFrame:
    from pyspark.sql import functions as F

    frame = local_frame(spark, rows, _TOLD_DDL)
    return frame.withColumn(schema.SOURCE_MODIFIED, F.timestamp_micros(schema.SOURCE_MODIFIED))
