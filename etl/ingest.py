"""One ingest: files of a source become one commit of the image table, and bad ones rows of its quarantine.

The order of the commits is what makes a kill harmless: images first, quarantine second. A file that an interrupted
ingest had not stored is new to the next one; one that it had stored is known by path, size and time.
"""

from __future__ import annotations

import getpass
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import EmptySourceError, InvalidArgumentError, NotADeltaTableError, TableConflictError
from ..locations import absolute
from ..progress import spark_progress
from . import schema
from .catalog import is_delta_table, path_of, read_table, sql_name
from .commit import Committed, Transaction, conflict_of, open_transaction, sql_literal
from .labels import LABELS_PROPERTY, grow_labels, labels_of, labels_property
from .listing import Listing
from .plan import CHANGED, GONE, IN_QUARANTINE, KNOWN, NEW, STATUS, STORED_HASH, Plan, make_plan
from .quality import Quarantine
from .recipe import RECIPE_PROPERTY, Recipe
from .results import CONTENT, DELETE, IngestPreview, IngestRequest, IngestResult, StreamResult
from .sources import list_source
from .worker import BatchTask
from .writing import deal_work, writing_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["IngestPreview", "IngestRequest", "IngestResult", "ingest", "ingest_available", "preview"]

_ATTEMPTS = 5
# A file that was found bad is read once more for its reason, alone in its Arrow batch.
_BAD_FILES_AT_ONCE = 1


def ingest(spark: SparkSession, location: str, request: IngestRequest) -> IngestResult:
    """Runs one ingest into the table at `location`, creating the table if it is not there.

    Another writer that commits meanwhile makes it plan again, so that no file is stored twice.

    Raises:
        TableConflictError: If other writers kept being faster.
        UsageError: Its subclasses, for every input that cannot be ingested.
    """
    request.check()
    conflict: TableConflictError | None = None
    for _ in range(_ATTEMPTS):
        try:
            with (
                _prepared(spark, location, request) as prepared,
                spark_progress(spark, f"ingest {request.source.name}"),
            ):
                return _Ingest(prepared).run()
        except TableConflictError as error:
            conflict = error
    raise TableConflictError(
        f"{location}: gave up after {_ATTEMPTS} attempts, because other writers kept committing first; "
        f"run the ingest again when they are done. Last: {conflict}"
    ) from conflict


def ingest_available(
    spark: SparkSession,
    location: str,
    request: IngestRequest,
    max_files: int,
    on_batch: Callable[[IngestResult], None] | None = None,
) -> StreamResult:
    """Ingests what a landing folder holds now, in batches of bounded size, each one commit; then ends.

    The table itself is the checkpoint: a file is done when it is known, as stored or as bad, by path, size and time.
    Killed at any moment, the next call goes on where this one stopped, and no file is stored twice or left out.

    Args:
        spark: The session.
        location: The table, created by the first batch if it is not there.
        request: What is asked for, of every batch alike.
        max_files: Most files that one batch reads.
        on_batch: Is told each batch's result as soon as it is committed.

    Raises:
        TableConflictError: If other writers kept being faster.
        UsageError: Its subclasses, as `ingest` does; but an empty folder is no error.
    """
    request.check()
    if not isinstance(max_files, int) or isinstance(max_files, bool) or max_files < 1:
        raise InvalidArgumentError(f"max_files = {max_files!r}: a batch has a whole number of files, 1 or more")
    done: list[IngestResult] = []
    attempts = 0
    while True:
        known_of_ours = sum(result.stored + result.quarantined for result in done)
        before = len(done)
        try:
            with _prepared(spark, location, request) as prepared:
                for result in _batches(prepared, max_files):
                    # After another writer's commit, what this call has done itself is among what is known.
                    own = min(known_of_ours, result.skipped)
                    known_of_ours -= own
                    done.append(replace(result, skipped=result.skipped - own, rows_in=result.rows_in - own))
                    if on_batch is not None:
                        on_batch(done[-1])
            return StreamResult.of(done)
        except EmptySourceError:
            version = done[-1].version if done else _version_of(spark, location)
            return StreamResult.of(done, version)
        except TableConflictError as error:
            attempts = 1 if len(done) > before else attempts + 1
            if attempts == _ATTEMPTS:
                raise TableConflictError(
                    f"{location}: gave up after {_ATTEMPTS} attempts and {len(done)} batches, because other writers "
                    f"kept committing first; run the stream again when they are done. Last: {error}"
                ) from error


def _batches(prepared: _Prepared, max_files: int) -> Iterator[IngestResult]:
    """Runs the parts of one plan, each on top of the version that the one before has made."""
    version = None if prepared.transaction is None else prepared.transaction.version
    for number, plan in enumerate(prepared.plan.batches(max_files)):
        part = prepared
        if number:
            transaction = _open(prepared.spark, prepared.location)
            if transaction is None or transaction.version != version:
                raise TableConflictError(f"{prepared.location}: another writer committed between two batches")
            part = replace(prepared, transaction=transaction)
        with spark_progress(prepared.spark, f"ingest {prepared.request.source.name}, batch {number + 1}"):
            result = _Ingest(part.with_plan(plan)).run()
        version = result.version
        yield result


def _version_of(spark: SparkSession, location: str) -> int | None:
    transaction = _open(spark, location)
    return None if transaction is None else transaction.version


def preview(spark: SparkSession, location: str, request: IngestRequest, limit: int) -> IngestPreview:
    """Plans an ingest and tells what it would do; reads no image and writes nothing.

    Args:
        spark: The session.
        location: The table.
        request: What would be asked for.
        limit: How many paths of each kind to name.

    Raises:
        UsageError: Its subclasses, as `ingest` does.
    """
    request.check()
    with _prepared(spark, location, request) as prepared:
        plan = prepared.plan
        files: dict[str, list[str]] = {}
        for status in (NEW, CHANGED, GONE):
            if plan.counts[status]:
                rows = plan.files.where(f"{STATUS} = '{status}'").select(schema.PATH).limit(limit).collect()
                files[status] = sorted(row[0] for row in rows)
        return IngestPreview(
            version=None if prepared.transaction is None else prepared.transaction.version,
            rows_in=plan.rows_in,
            new=plan.counts[NEW],
            changed=plan.counts[CHANGED],
            known=plan.counts[KNOWN],
            gone=plan.counts[GONE],
            ignored=dict(plan.ignored),
            new_classes=prepared.new_classes,
            files=files,
        )


@dataclass
class _Prepared:
    """An ingest up to the point where the first image is read; a context manager that lets go of the plan.

    Attributes:
        spark: A session of its own.
        location: The table.
        request: What was asked for.
        transaction: The open transaction; None when the table is to be created.
        recipe: How sources become rows.
        listing: What the source holds.
        plan: What is to be done.
        labels_before: Class numbers of the table.
        labels: Class numbers after the ingest.
    """

    spark: SparkSession
    location: str
    request: IngestRequest
    transaction: Transaction | None
    recipe: Recipe
    listing: Listing
    plan: Plan
    labels_before: Mapping[str, int]
    labels: Mapping[str, int]

    @property
    def new_classes(self) -> tuple[str, ...]:
        return tuple(name for name in self.labels if name not in self.labels_before)

    def with_plan(self, plan: Plan) -> _Prepared:
        """Gives the same with another plan, and the class numbers that the table has after that one."""
        text = None if self.transaction is None else self.transaction.property(LABELS_PROPERTY)
        before = labels_of({} if text is None else {LABELS_PROPERTY: text})
        names = plan.class_names + (_box_classes(plan) if self.listing.has_annotations and plan.work else [])
        if self.request.classes is not None:
            names = [name for name in self.request.classes if name in set(names)]
        return replace(self, plan=plan, labels_before=before, labels=grow_labels(before, names))

    def __enter__(self) -> _Prepared:
        return self

    def __exit__(self, *_: object) -> None:
        self.plan.release()
        self.listing.release()


def _prepared(user_session: SparkSession, location: str, request: IngestRequest) -> _Prepared:
    spark = writing_session(user_session)
    transaction = _open(spark, location)
    recipe = _recipe(transaction, location, request)
    listing = list_source(spark, request.source)
    quarantine = Quarantine(spark, location)
    plan = make_plan(
        listing,
        None if transaction is None else read_table(spark, location, transaction.version),
        quarantine.read() if quarantine.exists() else None,
        verify_content=request.verify == CONTENT,
    )
    try:
        if plan.rows_in == 0 and not (request.removed == DELETE and plan.counts[GONE]):
            passed = ", ".join(f"{count} {reason}" for reason, count in sorted(plan.ignored.items())) or "nothing"
            raise EmptySourceError(
                f"{request.source.name} holds no image file in layout {request.source.layout!r} ({passed} found); "
                "check the folder and the layout"
            )
        return _Prepared(spark, location, request, transaction, recipe, listing, plan, {}, {}).with_plan(plan)
    except BaseException:
        plan.release()
        listing.release()
        raise


def _open(spark: SparkSession, location: str) -> Transaction | None:
    if is_delta_table(spark, location):
        return open_transaction(spark, path_of(spark, location))
    path = Path(absolute(location))
    if "://" not in location and path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise NotADeltaTableError(
            f"{location} exists and is no Delta table; ingest into a path that does not exist yet, or an image table"
        )
    return None


def _recipe(transaction: Transaction | None, location: str, request: IngestRequest) -> Recipe:
    if transaction is None:
        return Recipe().with_changes(**request.recipe_changes)
    text = transaction.property(RECIPE_PROPERTY)
    mine = Recipe.of({} if text is None else {RECIPE_PROPERTY: text}, location)
    mine.check_unchanged(mine.with_changes(**request.recipe_changes), location)
    return mine


def _box_classes(plan: Plan) -> list[str]:
    """The classes of the boxes in the files that are to be read, in sorted order."""
    rows = plan.work_files().selectExpr("explode(boxes.label_name) AS name").distinct().collect()
    return sorted(row[0] for row in rows if row[0] is not None)


class _Ingest:
    """The steps of one ingest after its plan."""

    def __init__(self, prepared: _Prepared) -> None:
        self._prepared = prepared
        self._spark = prepared.spark
        self._plan = prepared.plan
        self._batch_id = prepared.request.batch_id or uuid.uuid4().hex
        self._removes = prepared.request.removed == DELETE

    def run(self) -> IngestResult:
        """Writes on top of the version that the plan was made for."""
        from .tally import counts_of, open_tally

        prepared, plan = self._prepared, self._plan
        tally = open_tally(self._spark.sparkContext)
        classes = prepared.request.classes
        task = BatchTask(
            prepared.recipe,
            prepared.request.limits,
            dict(prepared.labels),
            self._batch_id,
            has_annotations=prepared.listing.has_annotations,
            classes=None if classes is None else frozenset(classes),
            problems=tally,
        )
        stale = self._stale_rows()
        committed = self._write(task, stale) if plan.work or stale is not None else Committed(None, 0)
        version = committed.version
        if version is None and prepared.transaction is not None:
            version = prepared.transaction.version
        bad = self._bad_files(committed, task, is_append=stale is None) if plan.work else None
        reasons = self._settle_quarantine(bad)
        quarantined = sum(reasons.values())
        if version is None:
            raise TableConflictError(f"{prepared.location}: the table vanished while it was being written")
        return IngestResult(
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
            new_classes=prepared.new_classes,
            batch_id=self._batch_id,
            committed=committed.version is not None,
        )

    def _write(self, task: BatchTask, stale: str | None) -> Committed:
        prepared = self._prepared
        if self._plan.work:
            work = deal_work(self._spark, prepared.listing, self._plan, prepared.recipe)
            rows = work.mapInArrow(task.stored_rows, schema.IMAGE_TABLE_DDL)
        else:
            rows = self._spark.createDataFrame([], schema.IMAGE_TABLE_DDL)
        properties = {
            LABELS_PROPERTY: labels_property(prepared.labels),
            RECIPE_PROPERTY: prepared.recipe.as_property(),
        }
        if prepared.transaction is not None:
            return prepared.transaction.commit(rows, stale, properties, self._note())
        return self._create(rows, properties)

    def _note(self) -> str:
        """What the table's history says of this commit."""
        source = self._prepared.request.source
        note = {"lakelens": "ingest", "batch_id": self._batch_id, "source": source.name, "user": _user()}
        return json.dumps({**note, "layout": "dataframe" if source.is_frame else source.layout}, ensure_ascii=False)

    def _create(self, rows: DataFrame, properties: Mapping[str, str]) -> Committed:
        from pyspark.sql import functions as F

        location = self._prepared.location
        partitions = [F.col(name) for name in schema.PARTITION_COLUMNS]
        writer = rows.writeTo(sql_name(location)).using("delta").partitionedBy(*partitions)
        for name, value in {**schema.TABLE_PROPERTIES, **properties}.items():
            writer = writer.tableProperty(name, value)
        # The option of that name is not read when a table is created.
        self._spark.conf.set("spark.databricks.delta.commitInfo.userMetadata", self._note())
        try:
            writer.create()
        except Exception as error:
            conflict = conflict_of(error, f"{location} before it existed")
            if conflict is None:
                raise
            raise conflict from error
        finally:
            self._spark.conf.unset("spark.databricks.delta.commitInfo.userMetadata")
        return Committed(0, read_table(self._spark, location, 0).count())

    def _stale_rows(self) -> str | None:
        """The SQL condition of the rows that this ingest replaces or removes, or None."""
        statuses = [CHANGED, GONE] if self._removes else [CHANGED]
        if not any(self._plan.counts[status] for status in statuses):
            return None
        names = ", ".join(f"'{status}'" for status in statuses)
        rows = self._plan.files.where(f"{STATUS} IN ({names})").select(schema.PATH).collect()
        return f"{schema.PATH} IN ({', '.join(sql_literal(row[0]) for row in rows)})"

    def _bad_files(self, committed: Committed, task: BatchTask, *, is_append: bool) -> DataFrame | None:
        """Reads again, for their reasons, the files that did not become rows."""
        from pyspark import StorageLevel
        from pyspark.sql import functions as F

        missing = self._plan.work_files().drop(STATUS, STORED_HASH)
        if committed.version is not None:
            if is_append and committed.rows == self._plan.work:
                return None
            stored = read_table(self._spark, self._prepared.location, committed.version)
            stored = stored.where(F.col(schema.BATCH_ID) == self._batch_id).select(schema.PATH)
            missing = missing.join(stored, schema.PATH, "left_anti")
        read_contents = self._prepared.listing.read_contents
        if read_contents is not None:
            missing = read_contents(missing, _BAD_FILES_AT_ONCE)
        bad = missing.mapInArrow(task.quarantined_rows, schema.QUARANTINE_DDL)
        return bad.persist(StorageLevel.MEMORY_AND_DISK)

    def _settle_quarantine(self, bad: DataFrame | None) -> dict[str, int]:
        """Writes what is bad, takes out what is mended or gone, and counts the bad by reason."""
        reasons: dict[str, int] = {}
        if bad is not None:
            reasons = {row["reason"]: row["count"] for row in bad.groupBy("reason").count().collect()}
        mended = None
        gone = f" AND {STATUS} <> '{GONE}'" if not self._removes else ""
        if self._plan.mended_known or self._plan.quarantined_work or (self._removes and self._plan.counts[GONE]):
            mended = self._plan.files.where(f"{IN_QUARANTINE}{gone}").select(schema.PATH)
            if bad is not None:
                mended = mended.join(bad, schema.PATH, "left_anti")
        quarantine = Quarantine(self._spark, self._prepared.location)
        if reasons or (mended is not None and quarantine.exists()):
            quarantine.record(bad if reasons else None, mended)
        if bad is not None:
            bad.unpersist()
        return reasons


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return "unknown"
