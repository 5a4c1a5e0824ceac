"""One ingest: files of a source become one commit of the image table, and bad ones rows of its quarantine.

Images are committed first: after a kill before the second commit, bad files are new to the next ingest.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from ...errors import InvalidArgumentError, NothingStoredError, QuarantineConflictError, TableConflictError
from ...job_keys import Job, check_arguments, recorded_arguments
from ...log.entries import commit_numbers, entry_names, info_of, read_commits
from ...spark.port import kept
from ...spark.workers import map_in_arrow
from ...table import Table
from ...table_jobs import TableJob
from ..annotations.record import ANNOTATION_MISSING
from ..changes.plan import CHANGED, GONE, KNOWN, NEW, STATUS, STORED_CLASS, WORK
from ..commit.known_classes import record_classes
from ..commit.transaction import INGEST, Batch, create_image_table, note_of, user_name, write_note
from ..images.recipe import RECIPE_PROPERTY
from ..model import schema
from ..model.classes import NO_CLASS
from ..quarantine import DOUBTFUL_REASONS, Quarantine, Stamps
from ..sources.source import OTHER_ROWS, failure_of_source
from ..spark.catalog import is_delta_table, resolved
from ..spark.failures import RETRIES, naming_failures
from .decoding import DecodedFiles, decoded_files
from .loss import FILE_GONE
from .near_duplicates import find_across_splits
from .prepare import Prepared, check_classes, prepare
from .results import IngestPreview, IngestRequest, IngestResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
        files = prepared.plan.work_files().join(paths, schema.PATH, "left_semi")
        if prepared.listing.read_contents is not None:
            files = prepared.listing.read_contents(files, _FILES_AT_ONCE)
        again = map_in_arrow(files, decoded.task.quarantined_rows, schema.ddl_of(schema.QUARANTINE))
        again = prepared.opened.enter_context(kept(again))
        reasons.update({row["reason"]: row["count"] for row in again.groupBy("reason").count().collect()})
        frame = frame.unionByName(again)
    return BadFiles(frame, reasons)


# Of files that could not be stored, in the message of an ingest that stored none.
_MOST_NAMED, _MOST_CHARACTERS = 3, 200
# Commits of other writers between a call that was killed and the next one.
_COMMITS_OF_OTHERS = 20
_LONGEST_ARGUMENTS = 5000
# Images of a class in a split; one of them is more than 20 % of its recall below that.
_FEW = 5


@naming_failures
def ingest(spark: SparkSession, table: Table, request: IngestRequest) -> IngestResult:
    """Runs one ingest into a table, creating it if it is not there; plans again if another writer commits meanwhile."""
    job = Job.of(request.job)
    if job is None:
        return _ingest(spark, table, request)
    committed = None
    if is_delta_table(spark, table.location):
        keyed = TableJob(resolved(spark, table), job, request.arguments)
        found = keyed.result()
        if found is not None:
            return IngestResult.recorded(found)
        committed = None if job.from_start else _committed(keyed)
    result = _ingest(spark, table, request)
    keyed = TableJob(resolved(spark, table), job, request.arguments)
    if committed is not None and not result.stored:
        result = _with_near_duplicates(spark, table, request, committed)
    keyed.finish(asdict(result))
    return result


def _committed(keyed: TableJob) -> IngestResult | None:
    """Finds what a call of the job committed that was killed before it had recorded its result."""
    numbers = commit_numbers(entry_names(keyed.table))[-_COMMITS_OF_OTHERS:]
    notes = [note_of(info_of(actions).get("userMetadata")) for actions in read_commits(keyed.table, numbers)]
    for number, note in reversed(list(zip(numbers, notes, strict=True))):
        if note.get("job") == keyed.job.digest:
            check_arguments(keyed.job, note["arguments"], keyed.arguments)
            return IngestResult.recorded({**json.loads(note["result"]), "version": number, "committed": True})
    return None


def _ingest(spark: SparkSession, table: Table, request: IngestRequest) -> IngestResult:
    def planned_and_run() -> IngestResult:
        with prepare(spark, table, request) as prepared:
            check_classes(prepared)
            return run_prepared(prepared)

    gave_up = f"{table}: other writers kept committing first; run the ingest again when they are done."
    return _with_near_duplicates(spark, table, request, RETRIES.run(planned_and_run, gave_up))


def _with_near_duplicates(
    spark: SparkSession, table: Table, request: IngestRequest, result: IngestResult
) -> IngestResult:
    if not (request.near_duplicates and result.committed):
        return result
    near = find_across_splits(spark, table.location, result.version, [result.batch_id])
    return replace(result, near_duplicates=near)


@naming_failures
def preview(spark: SparkSession, table: Table, request: IngestRequest, limit: int) -> IngestPreview:
    """Plans an ingest and reports what it would do; reads no image and writes nothing."""
    with prepare(spark, table, request) as prepared:
        check_classes(prepared)
        plan = prepared.plan
        files = {status: sorted(plan.paths(status, limit)) for status in (*WORK, GONE) if plan.counts[status]}
        return IngestPreview(
            version=prepared.version,
            rows_in=plan.rows_in,
            new=plan.counts[NEW],
            changed=plan.counts[CHANGED],
            known=plan.counts[KNOWN],
            gone=plan.counts[GONE],
            ignored=dict(plan.ignored),
            new_classes=prepared.new_classes,
            vanished_classes=prepared.vanished_classes(),
            files=files,
            ignored_suffixes=plan.ignored_suffixes(),
            doubled=plan.doubled,
        )


def run_prepared(prepared: Prepared, name: str | None = None) -> IngestResult:
    """Reads, writes and commits what was planned, on top of the version that it was planned for."""
    plan, batch_id = prepared.plan, prepared.request.batch_id or uuid.uuid4().hex
    vanished = prepared.vanished_classes()
    if prepared.request.delete_missing:
        gone = {(class_name, FILE_GONE): rows for class_name, rows in plan.gone_by_class.items()}
        prepared.guard.add(gone, lambda: prepared.stored_counts)
    try:
        with decoded_files(prepared, batch_id, name or f"ingest {prepared.request.source.name}") as decoded:
            prepared.guard.add(decoded.lost, lambda: prepared.stored_counts)
            bad = find_bad_files(prepared, decoded)
            _require_some_stored(prepared, decoded, bad, is_part=name is not None)
            result = _result_of(prepared, decoded, bad, vanished)
            version = _commit(prepared, decoded, result)
            if version is None:
                result = replace(result, new_classes=())
            else:
                result = replace(result, version=version, committed=True)
            _settle_quarantine(prepared, bad, result.version)
    except Exception as error:
        changed = failure_of_source(error, prepared.table.location) if prepared.listing.read_contents else None
        if changed is None:
            raise
        raise changed from error
    if plan.restamped:
        Stamps(prepared.spark, prepared.table).remember(plan.restamped_files())
    return result


def _result_of(prepared: Prepared, decoded: DecodedFiles, bad: BadFiles, vanished: tuple[str, ...]) -> IngestResult:
    """Makes the result of an ingest that has committed nothing yet."""
    plan = prepared.plan
    return IngestResult(
        version=prepared.version or 0,
        rows_in=plan.rows_in,
        stored=decoded.stored,
        quarantined=sum(bad.reasons.values()),
        skipped=plan.rows_in - plan.work,
        changed=plan.counts[CHANGED],
        gone=plan.counts[GONE],
        removed=plan.counts[GONE] if prepared.request.delete_missing else 0,
        ignored=dict(plan.ignored),
        reasons=dict(bad.reasons),
        repairs=dict(decoded.repairs),
        new_classes=prepared.new_classes,
        vanished_classes=vanished,
        batch_id=decoded.task.batch_id,
        ignored_suffixes=plan.ignored_suffixes(),
        small_splits=_small_splits(prepared, decoded),
        doubled=plan.doubled,
    )


def _small_splits(prepared: Prepared, decoded: DecodedFiles) -> dict[str, dict[str, int]]:
    """Finds splits of a new table in which a class has too few images for a validation or a test to tell much."""
    classes = sorted(name for name in decoded.counts if name != NO_CLASS)
    if prepared.transaction is not None or not classes:
        return {}
    small = {
        split: {name: found for name in classes if (found := decoded.in_splits.get(split, {}).get(name, 0)) < _FEW}
        for split in list(prepared.recipe.splits)[1:]
    }
    return {split: few for split, few in small.items() if few}


def _require_some_stored(prepared: Prepared, decoded: DecodedFiles, bad: BadFiles, *, is_part: bool) -> None:
    """Makes no table without a row; the files of a table that exists may all be bad, but not all without annotation."""
    if decoded.stored or bad.frame is None:
        return
    is_layout_wrong = not is_part and dict(bad.reasons) == {ANNOTATION_MISSING: prepared.plan.rows_in}
    if prepared.transaction is not None and not is_layout_wrong:
        return
    first = bad.frame.orderBy(schema.PATH).limit(_MOST_NAMED).collect()
    named = "; ".join(f"{row[schema.PATH]}: {row['reason']}: {row['error'][:_MOST_CHARACTERS]}" for row in first)
    count = sum(bad.reasons.values())
    raise NothingStoredError(
        f"{prepared.request.source.name}: none of {count} images can be stored, so {prepared.table.location} "
        f"{'was not made' if prepared.transaction is None else 'stays as it is'}. The first ones: {named}"
    )


def _commit(prepared: Prepared, decoded: DecodedFiles, result: IngestResult) -> int | None:
    """Commits rows and removals; returns the version, or None if there are none."""
    transaction, note = prepared.transaction, _note(prepared, result)
    if transaction is None:
        properties = {**schema.TABLE_PROPERTIES, RECIPE_PROPERTY: prepared.recipe.as_property()}
        made = create_image_table(prepared.spark, prepared.table, Batch(decoded.rows, note, properties=properties))
        record_classes(made, 0, decoded.counts, decoded.task.labels)
        return 0
    stale = _stale_paths(prepared)
    if not decoded.stored and stale is None:
        return None
    counts = Counter(prepared.stored_counts)
    counts.update(decoded.counts)
    counts.subtract(prepared.plan.changed_by_class)
    counts.subtract(prepared.plan.gone_by_class if prepared.request.delete_missing else {})
    version = transaction.commit(Batch(decoded.rows, note, stale))
    if version is not None:
        # Of rows stored twice, the plan knows the class of one.
        is_single = not prepared.plan.doubled
        is_known = is_single and version == transaction.version + 1 and min(counts.values(), default=0) >= 0
        record_classes(transaction.table, version, counts if is_known else None, decoded.task.labels)
    return version


def _note(prepared: Prepared, result: IngestResult) -> str:
    """Writes the note of this commit for the table's history; that of a job has the result as well."""
    source, job = prepared.request.source, Job.of(prepared.request.job)
    arguments = "" if job is None else recorded_arguments(prepared.request.arguments, _LONGEST_ARGUMENTS)
    # A batch_id may have been given before; no other commit has the note, by which public writers find theirs.
    return write_note(
        INGEST,
        id=uuid.uuid4().hex,
        batch_id=result.batch_id,
        source=source.name,
        user=user_name(),
        layout="dataframe" if source.is_frame else source.layout,
        repairs=dict(result.repairs),
        **({} if job is None else {"job": job.digest, "arguments": arguments, "result": json.dumps(asdict(result))}),
    )


def _stale_paths(prepared: Prepared) -> DataFrame | None:
    """The paths whose rows this ingest replaces or removes, or None."""
    plan = prepared.plan
    if not (plan.changed_by_class or (prepared.request.delete_missing and plan.gone_by_class)):
        return None
    statuses = (CHANGED, GONE) if prepared.request.delete_missing else (CHANGED,)
    files = plan.files
    return files.where(files[STATUS].isin(*statuses) & files[STORED_CLASS].isNotNull()).select(schema.PATH)


def _settle_quarantine(prepared: Prepared, bad: BadFiles, version: int) -> None:
    """Records bad files in the quarantine, and removes repaired and missing ones."""
    plan, with_gone, leaving = prepared.plan, prepared.request.delete_missing, None
    if plan.in_quarantine or (with_gone and plan.gone_in_quarantine):
        leaving = plan.leaving_quarantine(with_gone=with_gone)
    quarantine = Quarantine(prepared.spark, prepared.table)
    try:
        if bad.frame is not None or (leaving is not None and quarantine.exists()):
            quarantine.record(bad.frame, leaving)
    except TableConflictError as error:
        raise QuarantineConflictError(
            f"{prepared.table}: the images are stored, the table is at version {version}; but others kept changing "
            f"{quarantine.location}, which lacks what was found bad ({sum(bad.reasons.values())} files). Run the "
            f"ingest again when they are done: it reads these files only. Last: {error}"
        ) from error
