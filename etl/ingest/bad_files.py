"""The files of an ingest that could not be stored, with their reasons, as rows of the quarantine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import InvalidArgumentError
from ...spark.port import kept
from ...spark.python_tasks import map_in_arrow
from ..model import schema
from ..quarantine import DOUBTFUL_REASONS
from ..sources.contents import OTHER_ROWS
from .decoding import DecodedFiles
from .prepare import Prepared

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A file that is read again for its reason is alone in its Arrow batch.
_FILES_AT_ONCE = 1


@dataclass(frozen=True)
class BadFiles:
    """Files for the quarantine."""

    # Rows of `schema.QUARANTINE`, or None without bad files; valid as long as the decoded files
    frame: DataFrame | None
    reasons: Mapping[str, int]  # Number of files by reason


def find_bad_files(prepared: Prepared, decoded: DecodedFiles) -> BadFiles:
    """Finds the files that did not become rows. Those whose reason is in doubt are read a second time, each alone."""
    from pyspark.sql import functions as F

    if decoded.stored + sum(decoded.refused.values()) != prepared.plan.work:
        raise InvalidArgumentError(OTHER_ROWS)
    if not decoded.refused:
        return BadFiles(None, {})
    reasons = Counter({reason: n for reason, n in decoded.refused.items() if reason not in DOUBTFUL_REASONS})
    is_doubtful = F.col("reason").isin(*DOUBTFUL_REASONS)
    frame = decoded.outcomes.where(F.col("reason").isNotNull() & ~is_doubtful)
    frame = frame.select(*schema.QUARANTINE.names)
    if sum(reasons.values()) < sum(decoded.refused.values()):
        paths = decoded.outcomes.where(is_doubtful).select(schema.PATH)
        again = _read_again(prepared, decoded, prepared.plan.work_files().join(paths, schema.PATH, "left_semi"))
        again = prepared.opened.enter_context(kept(again))
        reasons.update({row["reason"]: row["count"] for row in again.groupBy("reason").count().collect()})
        frame = frame.unionByName(again)
    return BadFiles(frame, reasons)


def _read_again(prepared: Prepared, decoded: DecodedFiles, files: DataFrame) -> DataFrame:
    read_contents = prepared.listing.read_contents
    if read_contents is not None:
        files = read_contents(files, _FILES_AT_ONCE)
    return map_in_arrow(files, decoded.task.quarantined_rows, schema.ddl_of(schema.QUARANTINE))
