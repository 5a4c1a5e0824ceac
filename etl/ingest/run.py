"""One ingest: files of a source become one commit of the image table, and bad ones rows of its quarantine.

The order of the commits is what makes a kill harmless: images first, quarantine second. A file that an interrupted
ingest had not stored is new to the next one; one that it had stored is known by path, size and time.
"""

from __future__ import annotations

import functools
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...errors import QuarantineConflictError, TableConflictError
from ...progress import image_progress
from ...table import Table
from ..changes.ingest_plan import CHANGED, GONE, KNOWN, NEW, STATUS, WORK
from ..commit.commit import create_image_table
from ..commit.known_classes import record_classes
from ..commit.transaction import Batch, Committed, user_name
from ..images.recipe import RECIPE_PROPERTY
from ..log.notes import INGEST, write_note
from ..model import schema
from ..quarantine.reseen_files import Stamps
from ..quarantine.table import Quarantine
from ..sources.contents import failure_of_source
from ..spark.catalog import path_of
from ..spark.conflicts import ATTEMPTS, wait_for_others
from ..spark.failures import naming_failures
from ..spark.local_frames import local_frame
from .bad_files import MOST_TOLD, BadFiles, find_bad_files
from .class_changes import find_renamed, find_vanished
from .class_rows import class_rows
from .label_changes import ClassChanges
from .loss import FILE_GONE
from .near_duplicates import find_across_splits
from .prepare import Prepared, check_classes, prepare, require_workers
from .results import IngestPreview, IngestRequest, IngestResult
from .row_task import BatchTask
from .task_sizes import deal_work

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession

    from .tally import Outcome

__all__ = ["IngestPreview", "IngestRequest", "IngestResult", "ingest", "preview"]


@naming_failures
def ingest(spark: SparkSession, location: str, request: IngestRequest) -> IngestResult:
    """Runs one ingest into the table at `location`, creating the table if it is not there.

    Another writer that commits meanwhile makes it plan again, so that no file is stored twice.

    Raises:
        TableConflictError: If other writers kept committing first; nothing was committed.
        QuarantineConflictError: If they kept changing the quarantine alone, after the images were committed.
        IngestLossError: If it would take most stored rows out of the table, or all of a class; nothing was committed.
        UsageError: Its other subclasses, for every input that cannot be ingested.
    """
    request.check()
    conflict: TableConflictError | None = None
    for attempt in range(ATTEMPTS):
        wait_for_others(attempt)
        try:
            with prepare(spark, location, request) as prepared:
                check_classes(prepared)
                result, added = run_prepared(prepared)
                changes = _class_changes(prepared, result, added)
        except TableConflictError as error:
            conflict = error
        else:
            result = replace(result, class_changes=changes)
            if not (request.near_duplicates and result.committed):
                return result
            near = find_across_splits(spark, location, result.version, [result.batch_id])
            return replace(result, near_duplicates=near)
    raise TableConflictError(
        f"{location}: gave up after {ATTEMPTS} attempts, because other writers kept committing first; "
        f"run the ingest again when they are done. Last: {conflict}"
    ) from conflict


@naming_failures
def preview(spark: SparkSession, location: str, request: IngestRequest, limit: int) -> IngestPreview:
    """Plans an ingest and reports what it would do; reads no image and writes nothing.

    Args:
        spark: The session.
        location: The table.
        request: What would be asked for.
        limit: How many paths of each kind to name.

    Raises:
        UsageError: Its subclasses, as `ingest` does.
    """
    request.check()
    with prepare(spark, location, request) as prepared:
        check_classes(prepared)
        plan = prepared.plan
        files: dict[str, list[str]] = {}
        for status in (*WORK, GONE):
            if plan.counts[status]:
                files[status] = sorted(plan.paths(status, limit=limit))
        return IngestPreview(
            version=prepared.version,
            rows_in=plan.rows_in,
            new=plan.counts[NEW],
            changed=plan.counts[CHANGED],
            known=plan.counts[KNOWN],
            gone=plan.counts[GONE],
            ignored=dict(plan.ignored),
            new_classes=prepared.new_classes,
            vanished_classes=_vanished(prepared),
            files=files,
            ignored_suffixes=plan.ignored_suffixes() if plan.ignored else {},
        )


def _vanished(prepared: Prepared) -> tuple[str, ...]:
    version = prepared.version
    if version is None or not prepared.plan.lost_classes:
        return ()
    stored, _ = class_rows(prepared.spark, prepared.location, prepared.columns, (version, version))
    return find_vanished(prepared.plan, stored)


def _class_changes(prepared: Prepared, result: IngestResult, added: DataFrame | None) -> ClassChanges:
    """Finds vanished and renamed classes, and images in several classes or splits."""
    if not (result.committed or prepared.plan.lost_classes):
        return ClassChanges()
    before = prepared.version
    is_next = result.version == (0 if before is None else before + 1)  # else others may have committed in between
    versions = before, result.version
    stored, rows = class_rows(prepared.spark, prepared.location, prepared.columns, versions, added if is_next else None)
    vanished = find_vanished(prepared.plan, stored)
    renamed = () if stored is None else find_renamed(stored, rows, vanished, prepared.plan.listed_by_class)
    return ClassChanges(vanished, renamed, *(rows.conflicts([result.batch_id]) if result.committed else ()))


def run_prepared(prepared: Prepared, name: str | None = None) -> tuple[IngestResult, DataFrame | None]:
    """Reads, writes and commits what was planned, on top of the version that it was planned for.

    Args:
        prepared: The ingest.
        name: What its progress is called; the source's name if absent.

    Returns:
        What was done, and the rows that were added, where that is known and nothing else was done to the table.

    Raises:
        TableConflictError: If another writer was faster.
        SourceNotFoundError: If a file that Spark reads was removed meanwhile; nothing was committed.
        InvalidArgumentError: If a DataFrame gave other rows than before; nothing was committed.
    """
    try:
        return _Ingest(prepared, name or f"ingest {prepared.request.source.name}").run()
    except Exception as error:
        changed = None if prepared.listing.read_contents is None else failure_of_source(error, prepared.location)
        if changed is None:
            raise
        raise changed from error


def _counted(outcome: Accumulator[Outcome], refused: Accumulator[dict[str, Any]]) -> tuple[int, int]:
    """Counts the files of the tasks that have ended: those that are done, and the bad ones among them."""
    bad = len(refused.value)
    return outcome.value.stored.total() + bad, bad


class _Ingest:
    """The steps of one ingest after its plan."""

    def __init__(self, prepared: Prepared, name: str) -> None:
        from .tally import open_outcome

        self._name = name
        self._prepared = prepared
        self._spark = prepared.spark
        self._plan = prepared.plan
        self._batch_id = prepared.request.batch_id or uuid.uuid4().hex
        self._removes = prepared.removes
        self._outcome = open_outcome(self._spark)

    def run(self) -> tuple[IngestResult, DataFrame | None]:
        """Writes on top of the version that the plan was made for."""
        from .tally import counts_of, open_tally

        prepared, plan = self._prepared, self._plan
        if plan.work:
            require_workers(self._spark, prepared.request)
        tally = open_tally(self._spark)
        refused = open_tally(self._spark, MOST_TOLD)
        classes = prepared.request.classes
        labels = prepared.reserve_classes() if plan.work else {}
        task = BatchTask(
            prepared.recipe,
            prepared.request.limits,
            dict(labels),
            self._batch_id,
            has_annotations=prepared.listing.has_annotations,
            classes=None if classes is None else frozenset(classes),
            problems=tally,
            outcome=self._outcome,
            refused=refused,
        )
        counted = functools.partial(_counted, self._outcome, refused)
        ignored_suffixes = plan.ignored_suffixes() if plan.ignored else {}
        if self._removes:
            prepared.guard.add({(name, FILE_GONE): rows for name, rows in plan.gone_by_class.items()})
        stale = self._stale_rows()
        with image_progress(self._name, plan.work, counted) as count_file:
            task = replace(task, count_file=count_file)
            committed = self._write(task, stale) if plan.work or stale is not None else Committed(None, 0)
        version = prepared.version if committed.version is None else committed.version
        if committed.version is not None:
            self._record(committed, labels)
        has_bad = committed.rows is None or committed.rows < plan.work
        bad = find_bad_files(prepared, task, committed, refused.value) if has_bad else None
        reasons = self._settle_quarantine(bad, version)
        if plan.touched:
            Stamps(self._spark, prepared.location).remember(plan.touched_files())
        quarantined = sum(reasons.values())
        if version is None:
            raise TableConflictError(f"{prepared.location}: the table vanished while it was being written")
        result = IngestResult(
            version=version,
            rows_in=plan.rows_in,
            stored=plan.work - quarantined,
            quarantined=quarantined,
            skipped=plan.rows_in - plan.work,
            changed=plan.counts[CHANGED],
            gone=plan.counts[GONE],
            removed=plan.counts[GONE] if self._removes else 0,
            ignored=dict(plan.ignored),
            reasons=reasons,
            repairs=counts_of(tally),
            new_classes=() if committed.version is None else prepared.new_classes,
            batch_id=self._batch_id,
            committed=committed.version is not None,
            ignored_suffixes=ignored_suffixes,
        )
        return result, committed.added

    def _write(self, task: BatchTask, stale: DataFrame | None) -> Committed:
        prepared = self._prepared
        if self._plan.work:
            work = deal_work(self._spark, prepared.listing, self._plan, prepared.recipe)
            rows = work.mapInArrow(task.stored_rows, schema.IMAGE_TABLE_DDL)
            self._check_before_writing(rows)
        else:
            rows = local_frame(self._spark, [], schema.IMAGE_TABLE_DDL)
        note = self._note()
        if prepared.transaction is not None:
            return prepared.transaction.commit(Batch(rows, note, stale, {}, self._before_commit))
        properties = {**schema.TABLE_PROPERTIES, RECIPE_PROPERTY: prepared.recipe.as_property()}
        batch = Batch(rows, note, properties=properties, before_commit=self._before_commit)
        return create_image_table(self._spark, prepared.location, batch)

    def _check_before_writing(self, rows: DataFrame) -> None:
        """Reads the files once before they are written, where the number of lost rows would be known too late."""
        prepared, changed = self._prepared, self._plan.changed_by_class
        transaction = prepared.transaction
        if transaction is None or transaction.asks_before_commit or not prepared.guard.would_stop(changed):
            return
        rows.write.format("noop").mode("overwrite").save()
        prepared.guard.add(self._outcome.value.lost)

    def _before_commit(self, row_count: int | None) -> str:
        """Checks what was written: raises if too many rows are lost, else returns the note."""
        self._prepared.guard.add(self._outcome.value.lost)
        return self._note()

    def _note(self) -> str:
        """Writes the note of this commit for the table's history."""
        source = self._prepared.request.source
        return write_note(
            INGEST,
            batch_id=self._batch_id,
            source=source.name,
            user=user_name(),
            layout="dataframe" if source.is_frame else source.layout,
        )

    def _record(self, committed: Committed, labels: Mapping[str, int]) -> None:
        """Records the rows by class of the new version in the table's ledger, where they are known exactly."""
        prepared, stored = self._prepared, self._outcome.value.stored
        counts = None
        if committed.rows == stored.total():  # tasks that ran twice have counted twice
            counts = Counter(prepared.stored_counts())
            counts.update(stored)
            counts.subtract(self._plan.changed_by_class)
            counts.subtract(self._plan.gone_by_class if self._removes else {})
        if counts is not None and min(counts.values(), default=0) < 0:
            counts = None
        table = Table.of(path_of(self._spark, prepared.location), None, prepared.request.storage_options)
        record_classes(table, int(committed.version or 0), counts, labels)

    def _stale_rows(self) -> DataFrame | None:
        """The paths whose rows this ingest replaces or removes, or None."""
        statuses = (CHANGED, GONE) if self._removes else (CHANGED,)
        if not any(self._plan.counts[status] for status in statuses):
            return None
        files = self._plan.files
        return files.where(files[STATUS].isin(*statuses)).select(schema.PATH)

    def _settle_quarantine(self, bad: BadFiles | None, version: int | None) -> dict[str, int]:
        """Records bad files in the quarantine, removes repaired and missing ones, and counts bad files by reason.

        Raises:
            QuarantineConflictError: If others kept changing the quarantine. Planning again, as after a conflict of the
                table, would find all images known and report an ingest that stored none.
        """
        reasons = {} if bad is None else dict(bad.reasons)
        mended = None
        if self._plan.mended_known or self._plan.quarantined_work or (self._removes and self._plan.quarantined_gone):
            mended = self._plan.wrongly_in_quarantine(with_gone=self._removes)
        quarantine = Quarantine(self._spark, self._prepared.location)
        try:
            if reasons or (mended is not None and quarantine.exists()):
                quarantine.record(None if bad is None or not reasons else bad.frame, mended)
        except TableConflictError as error:
            raise QuarantineConflictError(
                f"{self._prepared.location}: the images are stored, the table is at version {version}; but others kept "
                f"changing {quarantine.location}, which lacks what was found bad ({sum(reasons.values())} files). "
                f"Run the ingest again when they are done: it reads these files only. Last: {error}"
            ) from error
        finally:
            if bad is not None:
                bad.frame.unpersist()
        return reasons
