"""Prepares an ingest: opens the table, lists the source and plans, before the first image is read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...errors import EmptySourceError, InvalidArgumentError, SourceNotFoundError
from ...ledger.ledger import Ledger
from ...locations import absolute_path, has_scheme, is_table_name
from ...spark.port import is_local
from ...spark.workers import check_workers
from ...table import Table
from ..changes.ingest_plan import GONE, Plan
from ..changes.plan_on_driver import plan_listing, plan_on_driver
from ..changes.rules import Retry
from ..changes.spark_plan import make_plan
from ..commit.commit import open_transaction
from ..commit.known_classes import KnownClasses, count_classes, ledger_of, sound_classes
from ..commit.transaction import Transaction, require_columns
from ..files.layouts import FOLDER_LAYOUTS, NESTED_CLASS_FOLDERS
from ..files.walk import local_uri
from ..images.recipe import RECIPE_PROPERTY, Recipe
from ..log.table_columns import TableColumns
from ..model import schema
from ..model.labels import NO_CLASS
from ..quarantine.reseen_files import Stamps
from ..quarantine.table import Quarantine
from ..sources.listing import FOLDER_LISTING_DDL, Listing, completed
from ..sources.sources import list_source
from ..spark.catalog import is_delta_table, path_of, read_table, require_schema
from ..spark.local_frames import local_frame
from ..spark.writing_session import writing_session
from .checks import check_classes_known, check_place
from .loss import LossGuard
from .results import CONTENT, DELETE, IngestRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# What tasks that read images need on the executors.
_IMPORTED = ("numpy", "pyarrow", "PIL")


@dataclass
class Prepared:
    """An ingest up to the point where the first image is read; a context manager that frees the plan.

    Attributes:
        spark: A session of its own.
        location: The table.
        request: What was asked for.
        transaction: The open transaction; None when the table is to be created.
        recipe: How sources become rows.
        listing: What the source holds.
        plan: What is to be done.
        columns: The table's small columns, where the driver reads them itself; None where Spark does.
        guard: What keeps the ingest from taking most of the table out.
        known: The classes of the table; None when it is to be created, or nothing is to be written.
        class_names: The classes of the files that are to be stored.
    """

    spark: SparkSession
    location: str
    request: IngestRequest
    transaction: Transaction | None
    recipe: Recipe
    listing: Listing
    plan: Plan
    columns: TableColumns | None
    guard: LossGuard
    known: KnownClasses | None = None
    class_names: tuple[str, ...] = ()

    @property
    def version(self) -> int | None:
        """The version that the ingest starts from; None when the table is to be created."""
        return None if self.transaction is None else self.transaction.version

    @property
    def new_classes(self) -> tuple[str, ...]:
        """Classes that get a number."""
        return tuple(name for name in self.class_names if self.known is None or name not in self.known.labels)

    @property
    def removes(self) -> bool:
        """Whether rows of files that are gone from the source are deleted."""
        return self.request.removed == DELETE

    def stored_counts(self) -> Mapping[str, int]:
        """Rows by class of the version that the ingest starts from."""
        if self.version is None:
            return {}
        rows = None if self.columns is None else self.columns.at(self.version)
        if rows is not None:
            return Counter(name or NO_CLASS for name in rows.column(schema.LABEL_NAME).to_pylist())
        return count_classes(self._stored(), None if self.known is None else self.known.counts)

    def with_plan(self, plan: Plan) -> Prepared:
        """Returns the same with another plan, and the class numbers that the table has after that one.

        Raises:
            ClassNumbersError: If two classes of the table have one number, or one has two.
        """
        is_write = plan.work or (self.removes and plan.counts[GONE])
        known, options = None, self.request.storage_options
        if self.transaction is not None and is_write:
            known = sound_classes(self.spark, self.transaction, self.location, options)
        names = plan.class_names + (plan.box_classes() if self.listing.has_annotations and plan.work else [])
        if self.request.classes is not None:
            names = [name for name in self.request.classes if name in set(names)]
        return replace(self, plan=plan, known=known, class_names=tuple(names))

    def reserve_classes(self) -> Mapping[str, int]:
        """Returns the class numbers after the ingest; those of new classes are reserved in the table's ledger.

        The commit that creates a table comes before its ledger, because Delta wants an empty folder; of two ingests
        that create it at the same time one fails and plans again.
        """
        ledger = Ledger().reserved(self.class_names) if self.known is None else self.known.reserve(self.class_names)
        return ledger.labels

    def _stored(self) -> DataFrame:
        return read_table(self.spark, self.location, self.version)

    def __enter__(self) -> Prepared:
        return self

    def __exit__(self, *_: object) -> None:
        self.plan.release()
        self.listing.release()


def prepare(user_session: SparkSession, location: str, request: IngestRequest) -> Prepared:
    """Opens the table, lists the source and plans; the caller's session stays as it is.

    Raises:
        EmptySourceError: If the source holds nothing, and nothing is to be removed.
        InvalidArgumentError: If the table has the source's files by another layout.
        ClusterConfigurationError: If the session's Python workers cannot run lakelens.
        UsageError: Its other subclasses, for every input that cannot be ingested.
    """
    spark = writing_session(user_session)
    transaction = open_table(spark, location)
    aliases = _ledger(spark, transaction, request).aliases
    if request.classes is not None:
        request = replace(request, classes=[aliases.get(name, name) for name in request.classes])
    recipe = _recipe(transaction, location, request)
    if transaction is not None:
        require_columns(transaction, location)
    try:
        listing, plan, columns = _plan(spark, location, transaction, request, aliases)
    except (EmptySourceError, SourceNotFoundError) as error:
        if transaction is None or request.removed != DELETE or request.source.is_frame:
            raise
        root = absolute_path(str(request.source.location))
        if isinstance(error, SourceNotFoundError) and not has_scheme(root):
            raise
        # In an object store an empty folder is none, and of annotations it takes a file to list the folder.
        if has_scheme(root) or request.source.layout not in FOLDER_LAYOUTS:
            place = root if has_scheme(root) else local_uri(os.fsencode(root))
            raise type(error)(
                f"{error}. If it was emptied on purpose, and the rows of its files are to go too, delete them: "
                f"delete(\"path LIKE '{place.rstrip('/')}/%'\"), or lakelens table delete"
            ) from error
        if _has_folders(root):
            raise
        if not request.allow_loss:
            raise EmptySourceError(
                f"{error}. If the folder was emptied on purpose, and the rows of its files are to go too, say so: "
                "removed='delete' with allow_loss=True (--removed delete --allow-loss)"
            ) from error
        emptied = _emptied(spark, request, root)
        listing, plan, columns = _plan_listed(spark, location, transaction.version, request, emptied)
    try:
        if plan.rows_in == 0 and not (request.removed == DELETE and plan.counts[GONE]):
            passed = ", ".join(f"{count} {reason}" for reason, count in sorted(plan.ignored.items())) or "nothing"
            raise EmptySourceError(
                f"{request.source.name} holds no image file in layout {request.source.layout!r} ({passed} found); "
                "check the folder and the layout"
            )
        check_layout_kept(plan, request, location)
        # Counted when it is asked: few ingests lose anything.
        guard = LossGuard(location, lambda: prepared.stored_counts(), allowed=request.allow_loss)
        prepared = Prepared(spark, location, request, transaction, recipe, listing, plan, columns, guard)
        prepared = prepared.with_plan(plan)
        return prepared
    except BaseException:
        plan.release()
        listing.release()
        raise


def _plan(
    spark: SparkSession,
    location: str,
    transaction: Transaction | None,
    request: IngestRequest,
    aliases: Mapping[str, str],
) -> tuple[Listing, Plan, TableColumns | None]:
    """Lists the source and plans: on the driver if that is done soon, else by Spark."""
    version = None if transaction is None else transaction.version
    if not is_local(spark):
        require_workers(spark, request)  # even the driver's plan asks an executor whether it sees the source
    if request.verify != CONTENT:
        planned = plan_on_driver(spark, location, version, request.source, aliases, retry=_retry(request))
        if planned is not None:
            return planned
    require_workers(spark, request)
    listing = list_source(spark, request.source).described(aliases, request.classes).kept()
    try:
        return _plan_listed(spark, location, version, request, listing)
    except BaseException:
        listing.release()
        raise


def _plan_listed(
    spark: SparkSession, location: str, version: int | None, request: IngestRequest, listing: Listing
) -> tuple[Listing, Plan, TableColumns | None]:
    if request.verify != CONTENT:
        planned = plan_listing(spark, location, version, listing, retry=_retry(request))
        if planned is not None:
            return planned
    quarantine, stamps = Quarantine(spark, location), Stamps(spark, location)
    plan = make_plan(
        listing,
        None if version is None else read_table(spark, location, version),
        quarantine.read() if quarantine.exists() else None,
        stamps.read() if stamps.exists() else None,
        verify_content=request.verify == CONTENT,
        retry=_retry(request),
    )
    return listing, plan, None


def _retry(request: IngestRequest) -> Retry:
    return Retry(request.retry_quarantine, None if request.classes is None else frozenset(request.classes))


def require_workers(spark: SparkSession, request: IngestRequest) -> None:
    """Checks, once a session, that Python workers can list and read images. An ingest of nothing new needs none.

    Raises:
        ClusterConfigurationError: If they cannot; says how to fix it.
    """
    check_workers(spark, f"ingest {request.source.name}", _IMPORTED)


def _has_folders(root: str) -> bool:
    """Tells whether a local folder holds folders, or links that may be broken only because a disk is not mounted."""
    with os.scandir(root) as entries:
        return any(entry.is_dir() or entry.is_symlink() for entry in entries)


def _emptied(spark: SparkSession, request: IngestRequest, root: str) -> Listing:
    """Gives the listing of a local folder in which nothing is left."""
    files = completed(local_frame(spark, [], FOLDER_LISTING_DDL))
    return Listing(request.source.name, files, local_uri(os.fsencode(root)))


def check_classes(prepared: Prepared) -> None:
    """Checks that the classes that were asked for are classes of the source or of the table.

    Raises:
        InvalidArgumentError: If one is of neither; names the nearest.
    """
    wanted, plan = prepared.request.classes, prepared.plan
    if wanted is None:
        return
    known = {*plan.listed_by_class, *_ledger(prepared.spark, prepared.transaction, prepared.request).labels}
    if prepared.listing.has_annotations and not known.issuperset(wanted):
        known |= plan.listed_box_classes()
    check_classes_known(wanted, known, prepared.request.source.name, prepared.location)


def check_layout_kept(plan: Plan, request: IngestRequest, location: str) -> None:
    """Checks that rows that are stored do not have the classes of another folder layout.

    Raises:
        InvalidArgumentError: If some do. Their files are known, so that the new layout would have no effect on them.
    """
    layout = request.source.layout
    if request.source.is_frame or layout not in FOLDER_LAYOUTS:
        return
    for (stored, listed), files in plan.relabelled.items():
        nested, first = (listed, stored) if layout == NESTED_CLASS_FOLDERS else (stored, listed)
        if nested.partition("/")[0] == first:
            (other,) = {*FOLDER_LAYOUTS} - {layout}
            raise InvalidArgumentError(
                f"layout = {layout!r}: {location} has {files} files of {request.source.name} as class {stored!r}, as "
                f"layout {other!r} gives it; this layout gives {listed!r}. Ingest with layout {other!r} again, or "
                "into a new table"
            )


def open_table(spark: SparkSession, location: str) -> Transaction | None:
    """Opens a transaction on the table; None when there is none yet and one may be made.

    Raises:
        NotADeltaTableError: If something else is there.
    """
    if is_delta_table(spark, location):
        return open_transaction(spark, path_of(spark, location))
    if is_table_name(location):
        require_schema(spark, location)
        return None
    check_place(location)
    return None


def _ledger(spark: SparkSession, transaction: Transaction | None, request: IngestRequest) -> Ledger:
    if transaction is None:
        return Ledger()
    return ledger_of(spark, Table.of(transaction.path, None, request.storage_options))


def _recipe(transaction: Transaction | None, location: str, request: IngestRequest) -> Recipe:
    if transaction is None:
        return Recipe().with_changes(**request.recipe_changes)
    text = transaction.property(RECIPE_PROPERTY)
    mine = Recipe.of({} if text is None else {RECIPE_PROPERTY: text}, location)
    mine.check_unchanged(mine.with_changes(**request.recipe_changes), location)
    return mine
