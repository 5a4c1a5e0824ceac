"""The files of an ingest that could not be stored, with their reasons, as rows of the quarantine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import InvalidArgumentError
from ..model import schema
from ..quarantine.table import DOUBTFUL_REASONS
from ..sources.contents import OTHER_ROWS
from ..spark.local_frames import local_frame
from .decoding import DecodedFiles
from .prepare import Prepared
from .row_task import BatchTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A file that is read again for its reason is alone in its Arrow batch.
_FILES_AT_ONCE = 1
_REFUSED_DDL = schema.QUARANTINE_DDL.replace("TIMESTAMP", "BIGINT")
_REASON = schema.quarantine_arrow_schema().get_field_index("reason")


@dataclass(frozen=True)
class BadFiles:
    """Files for the quarantine.

    Attributes:
        frame: Rows of `schema.QUARANTINE_DDL`, or None if there is no bad file.
        reasons: Number of files by reason.
    """

    frame: DataFrame | None
    reasons: Mapping[str, int]


def find_bad_files(prepared: Prepared, decoded: DecodedFiles) -> BadFiles:
    """Finds the files that did not become rows.

    Raises:
        InvalidArgumentError: If files are neither rows nor bad: a DataFrame does not have them any more.
    """
    work, refused, missing = prepared.plan.work_files(), decoded.refused, prepared.plan.work - decoded.stored
    if not missing:
        return BadFiles(None, {})
    if missing == len(refused):
        rows = [row for row in refused.values() if row[_REASON] not in DOUBTFUL_REASONS]
        doubtful = [(path,) for path, row in refused.items() if row[_REASON] in DOUBTFUL_REASONS]
        if doubtful:
            paths = local_frame(prepared.spark, doubtful, f"{schema.PATH} STRING")
            again = _read_again(prepared, decoded.task, work.join(paths, schema.PATH, "left_semi"))
            rows += [tuple(row) for row in _with_time_as_number(again).collect()]
        return BadFiles(_frame_of(prepared.spark, rows), Counter(row[_REASON] for row in rows))
    work = work.join(decoded.rows.select(schema.PATH), schema.PATH, "left_anti")
    found = _read_again(prepared, decoded.task, work).persist()
    reasons = {row["reason"]: row["count"] for row in found.groupBy("reason").count().collect()}
    if sum(reasons.values()) != missing:
        raise InvalidArgumentError(OTHER_ROWS)
    return BadFiles(found, reasons)


def _read_again(prepared: Prepared, task: BatchTask, files: DataFrame) -> DataFrame:
    read_contents = prepared.listing.read_contents
    if read_contents is not None:
        files = read_contents(files, _FILES_AT_ONCE)
    return files.mapInArrow(task.quarantined_rows, schema.QUARANTINE_DDL)


def _with_time_as_number(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.withColumn(schema.SOURCE_MODIFIED, F.unix_micros(schema.SOURCE_MODIFIED))


def _frame_of(spark: SparkSession, rows: Sequence[tuple[Any, ...]]) -> DataFrame:
    from pyspark.sql import functions as F

    frame = local_frame(spark, rows, _REFUSED_DDL)
    return frame.withColumn(schema.SOURCE_MODIFIED, F.timestamp_micros(schema.SOURCE_MODIFIED))
