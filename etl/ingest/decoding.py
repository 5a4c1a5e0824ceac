"""Reads and decodes the files of a plan, once: rows that Spark keeps until they are committed, and the bad files."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...progress import image_progress
from ..commit.known_classes import count_classes
from ..model import schema
from ..spark.local_frames import local_frame
from .prepare import Prepared
from .row_task import BatchTask
from .task_sizes import deal_work

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame

    from .tally import Outcome

# Tasks report at most this number of bad files. With more, or where tasks ran twice, bad files are read once more.
MOST_REFUSED = 50_000


@dataclass(frozen=True)
class DecodedFiles:
    """The files of a plan after they were read.

    Attributes:
        task: What the tasks that read them know.
        rows: Rows of `schema.IMAGE_TABLE_DDL`, kept on the executors' disks.
        counts: Number of rows by class.
        refused: Files that cannot be stored: values of their quarantine rows, by path; `MOST_REFUSED` at most.
        lost: Files that had a row and will have none, by the row's class and the reason.
        repairs: Repaired and dropped boxes by reason.
    """

    task: BatchTask
    rows: DataFrame
    counts: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    lost: Mapping[tuple[str, str], int] = field(default_factory=dict)
    repairs: Mapping[str, int] = field(default_factory=dict)

    @property
    def stored(self) -> int:
        """Number of rows."""
        return sum(self.counts.values())


@contextmanager
def decoded_files(prepared: Prepared, batch_id: str, name: str) -> Iterator[DecodedFiles]:
    """Reads the files that are to be read; Spark forgets the rows at the end.

    The rows need disk space on the executors until they are committed. In return a loss is found before the commit,
    the history has exact counts, and a batch of bad files alone makes no version.

    Args:
        prepared: The ingest.
        batch_id: Written into every row.
        name: What the progress is called.
    """
    from pyspark import StorageLevel

    from .tally import counts_of, open_outcome, open_tally

    plan, request, spark = prepared.plan, prepared.request, prepared.spark
    refused, problems, outcome = open_tally(spark, MOST_REFUSED), open_tally(spark), open_outcome(spark)
    with image_progress(name, plan.work, functools.partial(_counted, outcome, refused)) as count_file:
        task = BatchTask(
            prepared.recipe,
            request.limits,
            dict(prepared.reserve_classes()),
            batch_id,
            has_annotations=prepared.listing.has_annotations,
            classes=None if request.classes is None else frozenset(request.classes),
            problems=problems,
            outcome=outcome,
            refused=refused,
            count_file=count_file,
        )
        if not plan.work:
            yield DecodedFiles(task, local_frame(spark, [], schema.IMAGE_TABLE_DDL))
            return
        work = deal_work(spark, prepared.listing, plan, prepared.recipe)
        rows = work.mapInArrow(task.stored_rows, schema.IMAGE_TABLE_DDL).persist(StorageLevel.DISK_ONLY)
        try:
            counts = count_classes(rows)
            lost = sum(outcome.value.lost.values(), Counter[tuple[str, str]]())
            yield DecodedFiles(task, rows, counts, refused.value, lost, counts_of(problems))
        finally:
            rows.unpersist()


def _counted(outcome: Accumulator[Outcome], refused: Accumulator[dict[str, Any]]) -> tuple[int, int]:
    """Counts the files of the tasks that have ended: those that are done, and the bad ones among them."""
    bad = len(refused.value)
    return outcome.value.stored.total() + bad, bad
