"""Prepares an ingest: opens the table, lists the source and plans, before the first image is read."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from ...errors import EmptySourceError, InvalidArgumentError, TableConflictError
from ...ledger.ledger import Ledger
from ...spark.workers import check_workers
from ...table import Table
from ..changes.plan import GONE, Plan
from ..changes.planner import make_plan
from ..changes.rules import PlanRules
from ..commit.known_classes import KnownClasses, ledger_of, sound_classes, stored_classes
from ..commit.transaction import Transaction, require_columns, require_reachable
from ..files import COCO, FOLDER_LAYOUTS, NESTED_CLASS_FOLDERS, VOC
from ..images.recipe import Recipe
from ..model import schema
from ..model.classes import names_now, spelled
from ..quarantine import Quarantine, Stamps
from ..sources.annotated_folders import check_split_lists, list_coco, list_voc
from ..sources.folders import list_class_folders
from ..sources.image_rows import list_frame, list_manifest
from ..sources.named_images import annotation_errors, check_not_all_elsewhere
from ..sources.source import Listing, Source, has_numbered_folders, raise_refusal
from ..spark.catalog import is_delta_table, read_table, require_schema
from ..spark.writing_session import local_frame, writing_session
from .checks import check_classes_known, check_place
from .loss import LossGuard
from .results import CONTENT, IngestRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What tasks that read images need on the executors.
_IMPORTED = ("numpy", "pyarrow", "PIL")


@dataclass
class Prepared:
    """An ingest up to the point where the first image is read; a context manager that frees what Spark keeps for it."""

    spark: SparkSession  # A separate session
    table: Table  # The table
    request: IngestRequest  # The source and options of the ingest
    transaction: Transaction | None  # The open transaction; None when the table is to be created
    recipe: Recipe  # How sources become rows
    listing: Listing  # What the source holds
    plan: Plan  # What is to be done
    guard: LossGuard  # What keeps the ingest from taking most of the table out
    # The classes of the table; None when it is to be created, or nothing is to be written
    known: KnownClasses | None = None
    class_names: tuple[str, ...] = ()  # The classes of the files that are to be stored
    opened: ExitStack = field(default_factory=ExitStack)  # What is to be freed

    @property
    def version(self) -> int | None:
        """The version that the ingest starts from; None when the table is to be created."""
        return None if self.transaction is None else self.transaction.version

    @property
    def new_classes(self) -> tuple[str, ...]:
        """Classes that get a number."""
        return tuple(name for name in self.class_names if self.known is None or name not in self.known.labels)

    @cached_property
    def stored_counts(self) -> Mapping[str, int]:
        """Rows by class of the version that the ingest starts from."""
        if self.transaction is None:
            return {}
        return stored_classes(self.spark, self.transaction, _ledger(self.spark, self.transaction))

    def vanished_classes(self) -> tuple[str, ...]:
        """Finds classes of stored rows that no file of the source has any more, and no row of another source."""
        lost = self.plan.lost_classes
        if not lost:
            return ()
        stored = self.stored_counts
        return tuple(sorted(name for name in lost if stored.get(name) == self.plan.lost_by_class[name]))

    def with_plan(self, plan: Plan) -> Prepared:
        """Returns the same with another plan, and the class numbers that the table has after that one."""
        is_write = plan.work or (self.request.delete_missing and plan.counts[GONE])
        known = None
        if self.transaction is not None and is_write:
            known = sound_classes(self.spark, self.transaction)
        names = plan.class_names + plan.work_box_classes
        if self.request.classes is not None:
            names = [name for name in self.request.classes if name in set(names)]
        return replace(self, plan=plan, known=known, class_names=tuple(names))

    def reserve_classes(self) -> Mapping[str, int]:
        """Returns the class numbers after the ingest; those of new classes are reserved in the table's ledger."""
        if not self.plan.work:
            return {}
        # The commit that creates a table comes before its ledger, because Delta wants an empty folder.
        ledger = Ledger().reserved(self.class_names) if self.known is None else self.known.reserve(self.class_names)
        labels = ledger.labels
        renamed = next((name for name in self.class_names if name not in labels), None)
        if renamed is not None:
            raise TableConflictError(
                f"{self.table}: the class {renamed!r} was renamed to {ledger.aliases[renamed]!r} meanwhile"
            )
        return labels

    def check_not_empty(self) -> None:
        """Checks that the source holds files; one that was emptied may be ingested to remove the rows of its files."""
        plan, source = self.plan, self.request.source
        if plan.rows_in or (self.request.delete_missing and plan.counts[GONE]):
            return
        ignored = ", ".join(f"{count} {reason}" for reason, count in sorted(plan.ignored.items())) or "nothing"
        emptied = (
            ". If it was emptied on purpose, remove its rows: delete_missing=True with allow_loss=True "
            "(--delete-missing --allow-loss)"
        )
        raise EmptySourceError(
            f"{source.name} holds no image file in layout {source.layout!r} ({ignored} found); check the folder and "
            f"the layout{emptied if plan.counts[GONE] else ''}"
        )

    def check_layout_kept(self) -> None:
        """Checks that stored rows do not have the classes of another folder layout."""
        source = self.request.source
        if source.is_frame or source.layout not in FOLDER_LAYOUTS:
            return
        for (stored, listed), files in self.plan.relabelled.items():
            nested, first = (listed, stored) if source.layout == NESTED_CLASS_FOLDERS else (stored, listed)
            if nested.partition("/")[0] == first:
                (other,) = {*FOLDER_LAYOUTS} - {source.layout}
                raise InvalidArgumentError(
                    f"layout = {source.layout!r}: {self.table} has {files} files of {source.name} as class {stored!r}, "
                    f"as layout {other!r} gives it; this layout gives {listed!r}. Ingest with layout {other!r} again, "
                    "or into a new table"
                )

    def __enter__(self) -> Prepared:
        return self

    def __exit__(self, *_: object) -> None:
        self.opened.close()


def prepare(user_session: SparkSession, table: Table, request: IngestRequest) -> Prepared:
    """Opens the table, lists the source and plans; the caller's session stays as it is."""
    spark = writing_session(user_session)
    transaction = open_transaction(spark, table)
    configuration = None if transaction is None else transaction.properties
    recipe = Recipe.of_table(configuration, table.location, **request.recipe_changes)
    if transaction is not None:
        require_columns(transaction)
    ledger = _ledger(spark, transaction)
    aliases = names_now(ledger.labels, ledger.aliases)
    if request.classes is not None:
        wanted = map(spelled, request.classes)
        request = replace(request, classes=[aliases.get(name, name) for name in wanted])
    classes = None if request.classes is None else frozenset(request.classes)
    rules = PlanRules(request.verify == CONTENT, request.retry_quarantine, request.drop_bad_boxes, classes)
    check_workers(spark, f"ingest {request.source.name}", _IMPORTED)
    with ExitStack() as opened:
        if transaction is None:
            stored = local_frame(spark, [], schema.ddl_of(schema.IMAGE_TABLE))
        else:
            stored = read_table(spark, table.location, transaction.version)
        with annotation_errors():
            listing = list_source(spark, request.source, keep_names=recipe.keep_folder_names)
            listing = listing.described(aliases, request.classes).kept()
            opened.callback(listing.release)
            bad = Quarantine(spark, table).read_to_plan()
            plan = make_plan(listing, stored, bad, Stamps(spark, table).read(), rules)
        opened.callback(plan.release)
        raise_refusal([*plan.ignored, *plan.seen])
        if recipe.keep_folder_names is None:
            recipe = replace(recipe, keep_folder_names=_keeps_names(request.source, listing, plan))
        guard = LossGuard(table.location, allowed=request.allow_loss)
        prepared = Prepared(spark, table, request, transaction, recipe, listing, plan, guard)
        check_not_all_elsewhere(request.source, plan)
        if transaction is None:
            check_split_lists(request.source, plan)
        prepared.check_not_empty()
        prepared.check_layout_kept()
        return replace(prepared.with_plan(plan), opened=opened.pop_all())


def list_source(spark: SparkSession, source: Source, *, keep_names: bool | None = None) -> Listing:
    """Lists a source; `keep_names` as in `Recipe.keep_folder_names`."""
    if source.is_frame:
        return list_frame(spark, source)
    if source.layout in FOLDER_LAYOUTS:
        return list_class_folders(spark, source, keep_names=keep_names)
    return {VOC: list_voc, COCO: list_coco}.get(source.layout, list_manifest)(spark, source)


def _keeps_names(source: Source, listing: Listing, plan: Plan) -> bool:
    """Returns what the folders of a first ingest show; without class folders, later ones keep their names."""
    if listing.keeps_names is not None:
        return listing.keeps_names
    return source.is_frame or source.layout not in FOLDER_LAYOUTS or not has_numbered_folders(plan.seen)


def check_classes(prepared: Prepared) -> None:
    """Checks that the requested classes are classes of the source or of the table."""
    wanted, plan = prepared.request.classes, prepared.plan
    if wanted is None:
        return
    known = {*plan.listed_by_class, *_ledger(prepared.spark, prepared.transaction).labels}
    known = known.union(*plan.box_classes.values())
    check_classes_known(wanted, known, prepared.request.source.name, prepared.table.location)


def open_transaction(spark: SparkSession, table: Table) -> Transaction | None:
    """Opens a transaction on the table; None if the table does not exist yet, and may be created."""
    exists = is_delta_table(spark, table.location)
    if not exists and table.is_name:
        require_schema(spark, table.location)
    elif not exists:
        check_place(table.location)
    require_reachable(spark, table, exists=exists)
    return Transaction(spark, table) if exists else None


def _ledger(spark: SparkSession, transaction: Transaction | None) -> Ledger:
    return Ledger() if transaction is None else ledger_of(spark, transaction.table)
