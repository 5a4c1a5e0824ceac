"""Operations that change stored rows, each as one commit: rows deleted, a class renamed, damage repaired."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ...errors import InvalidArgumentError, LakelensError, TableConflictError
from ...ledger.ledger import Ledger
from ...ledger.store import change, read
from ...log.opening import open_table
from ...options import suggestion
from ...results import ReadableResult
from ...spark.port import count_rows, kept
from ...table import Table
from ..commit.known_classes import count_classes, known_classes, record_classes, sound_classes, stored_classes
from ..commit.transaction import DELETE, RENAME, REPAIR, Batch, Transaction, require_columns, user_name, write_note
from ..images.recipe import Recipe
from ..model import schema
from ..model.classes import MAX_NAME_LENGTH, NO_CLASS, class_name
from ..quarantine import DELETED, Quarantine
from ..spark.catalog import column_in_one_form, read_table, require_delta_table, sql_literal
from ..spark.failures import check_condition, condition_named, naming_failures
from ..spark.writing_session import local_frame, writing_session

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


@dataclass(frozen=True)
class TableEdit:
    """An image table that is about to be changed."""

    spark: SparkSession  # A writing session
    table: Table  # The table
    transaction: Transaction  # A transaction at its latest version
    user: str = field(default_factory=user_name)  # Who changes it

    def rows(self) -> DataFrame:
        """Reads the transaction's version."""
        return read_table(self.spark, self.transaction.path, self.transaction.version)

    def commit(
        self,
        kind: str,
        stale: DataFrame,
        rows: DataFrame | None,
        counts: Mapping[str, int],
        renamed: tuple[str, str] | None = None,
        **noted: object,
    ) -> int:
        """Replaces the rows of some paths as one commit, which may rename a class; returns its version."""
        paths = stale.select(column_in_one_form(schema.PATH).alias(schema.PATH)).distinct()
        new = local_frame(self.spark, [], schema.ddl_of(schema.IMAGE_TABLE)) if rows is None else rows
        noted = noted if renamed is None else {**noted, "renamed": list(renamed)}
        # No other commit has the note, by which public writers find theirs.
        note = write_note(kind, user=self.user, id=uuid.uuid4().hex, **noted)
        version = self.transaction.commit(Batch(new, note, paths))
        if version is None:
            raise TableConflictError(f"{self.table}: the rows to be changed are gone; try again")
        record_classes(self.transaction.table, version, counts, renamed=renamed)
        return version

    def is_uncommitted(self, error: BaseException) -> bool:
        """Whether it is certain that a commit which ended in an error changed no row; an interrupted one still may."""
        if isinstance(error, TableConflictError):
            return True
        try:
            latest = open_table(self.transaction.table).version()
        except LakelensError:
            return False
        return isinstance(error, Exception) and latest == self.transaction.version


def open_edit(spark: SparkSession, table: Table) -> TableEdit:
    """Opens an image table to change stored rows."""
    session = writing_session(spark)
    require_delta_table(session, table.location)
    transaction = Transaction(session, table)
    Recipe.of_table(transaction.properties, str(table))
    require_columns(transaction)
    return TableEdit(session, table, transaction)


@dataclass(frozen=True, repr=False)
class DeleteResult(ReadableResult):
    """The result of a deletion."""

    version: int  # The table's version that holds the result; the latest when no row met the condition
    deleted: dict[str, int] = field(default_factory=dict)  # Deleted rows by class
    committed: bool = False  # Whether a new version was made


@naming_failures
def delete(spark: SparkSession, table: Table, where: str) -> DeleteResult:
    """Deletes the rows that meet a condition, as one commit.

    Their quarantine entries are written first: after a kill between the two commits, the next ingest removes them.
    """
    check_condition(where)
    edit = open_edit(spark, table)
    rows = edit.rows()
    small = [name for name in rows.columns if name not in (schema.IMAGE, schema.ANNOTATIONS)]
    with ExitStack() as stack:
        with condition_named(rows, where):
            found = stack.enter_context(kept(rows.where(where).select(*small)))
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

    values = {schema.PATH: column_in_one_form(schema.PATH), "reason": F.lit(DELETED), "error": F.lit(reason)}
    names = schema.QUARANTINE.names
    return rows.select(*[values.get(name, F.col(name)).alias(name) for name in names])


@dataclass(frozen=True, repr=False)
class RenameResult(ReadableResult):
    """The result of renaming a class."""

    version: int  # The version that holds the result
    old: str  # The name that the class had
    new: str  # The name that it has
    number: int  # Its number, which stays
    rows: int  # Rows that were rewritten: those of the class, and those with boxes of it


@naming_failures
def rename_class(spark: SparkSession, table: Table, old: str, new: str) -> RenameResult:
    """Renames a class as one commit; one that was killed before its commit is completed by the same call."""
    _check_new(new)
    edit = open_edit(spark, table)
    known = sound_classes(edit.spark, edit.transaction)
    _check_names(table.location, known.ledger, old, new)
    number = known.ledger.numbers[old]
    counts = Counter[str]()
    for name, stored in stored_classes(edit.spark, edit.transaction, known.ledger).items():
        counts[new if name == old else name] += stored
    found = edit.rows().where(_has_name(old))
    rows = count_rows(found.select(schema.PATH))
    version = edit.transaction.version

    def begun(ledger: Ledger) -> Ledger:
        settled, _ = ledger.settled(known.rows or {})
        _check_names(table.location, settled, old, new)
        if rows:
            return settled.begun(old, new, version)
        return settled.renamed(old, new).recorded(version, counts)

    # The rename is noted first: rows of the new name are rows of the class, whenever this process dies.
    change(known.table, begun)
    if rows:
        try:
            version = edit.commit(RENAME, found, _renamed(found, old, new), counts, (old, new))
        except BaseException as error:
            if edit.is_uncommitted(error):
                with suppress(LakelensError):  # the commit's error is what matters
                    change(known.table, lambda ledger: ledger.given_up(old, new))
            raise
    return RenameResult(version, old, new, number, rows)


def check_names(table: Table, old: str, new: str) -> None:
    """Checks two names before there is a session, as far as the table's log tells; raises as `rename_class`."""
    _check_new(new)
    if table.is_name:
        return
    ledger = read(table)
    if ledger.classes:
        _check_names(table.location, ledger, old, new)


def _check_new(new: str) -> None:
    name = class_name(new) if isinstance(new, str) else None
    if name is None or new == NO_CLASS:
        raise InvalidArgumentError(f"new={new!r}: the name of a class is a text of 1 to {MAX_NAME_LENGTH} characters")
    if name != new:
        raise InvalidArgumentError(f"new={new!r}: every source spells this class {name!r}; give that")


def _check_names(location: str, ledger: Ledger, old: str, new: str) -> None:
    if ledger.aliases.get(old) == new:  # a rename that was killed before its commit
        return
    if old not in ledger.labels:
        raise InvalidArgumentError(f"{location} has no class {old!r}; {suggestion(old, ledger.labels)}")
    number = ledger.numbers.get(new)
    if new in ledger.labels:
        raise InvalidArgumentError(
            f"{location} has a class {new!r} already, with the number {number}: two classes cannot become one. "
            f"Delete the rows of {old!r} and ingest their files as {new!r}"
        )
    if number is not None and number != ledger.labels[old]:
        # Later ingests store files of the folder `new` in that class; another class of the name would take them over.
        raise InvalidArgumentError(
            f"{location}: {new!r} was the name of the class {ledger.aliases[new]!r}, with the number {number}, and its "
            "files are still stored in that class. Choose a name that no other class had"
        )


def _has_name(old: str) -> Column:
    from pyspark.sql import functions as F

    boxes = F.exists(schema.ANNOTATIONS, lambda box: box["label_name"] == old)
    return F.coalesce(F.col(schema.LABEL_NAME) == old, F.lit(False)) | F.coalesce(boxes, F.lit(False))


def _renamed(rows: DataFrame, old: str, new: str) -> DataFrame:
    from pyspark.sql import functions as F

    def renamed(name: Column) -> Column:
        return F.when(name == old, F.lit(new)).otherwise(name)

    boxes = F.transform(schema.ANNOTATIONS, lambda box: box.withField("label_name", renamed(box["label_name"])))
    return rows.withColumns({schema.LABEL_NAME: renamed(F.col(schema.LABEL_NAME)), schema.ANNOTATIONS: boxes})


_KEY, _NUMBER = "path_in_one_form", "row_of_path"


@dataclass(frozen=True, repr=False)
class RepairResult(ReadableResult):
    """The result of a repair, or of a dry run."""

    version: int  # The table's version that holds the result; the version before when nothing was committed
    findings: tuple[str, ...] = ()  # Descriptions of what was wrong; empty for a table without damage
    changes: tuple[str, ...] = ()  # Descriptions of what is changed
    labels: dict[str, int] = field(default_factory=dict)  # The class numbers afterwards
    committed: bool = False  # Whether a new version was made


@naming_failures
def repair(spark: SparkSession, table: Table, *, dry_run: bool = False) -> RepairResult:
    """Gives each class one number in rows and boxes, and each path one row: that of its newest file."""
    edit = open_edit(spark, table)
    known = known_classes(edit.spark, edit.transaction, look_at_rows=True)
    version = edit.transaction.version
    new = sorted({one.name for one in known.wrong} - known.ledger.numbers.keys())
    largest = max((one.number for one in known.wrong), default=-1)
    ledger = known.ledger.reserved(new, largest) if dry_run or not known.wrong else known.reserve(new, largest)
    right = {one.name: ledger.numbers[one.name] for one in known.wrong}
    findings = list(map(str, known.wrong))
    changes = [f"{one.rows} of {one.name!r}: number {one.number} becomes {right[one.name]}" for one in known.wrong]
    rows = edit.rows().withColumn(_KEY, column_in_one_form(schema.PATH))
    with kept(rows.groupBy(_KEY).count().where("count > 1")) as doubled:
        paths, extra, first = doubled.selectExpr("count(*)", "coalesce(sum(count - 1), 0)", f"min({_KEY})").collect()[0]
        if paths:
            findings.append(f"{extra} rows too many of {paths} paths, such as {first}")
            changes.append(f"{extra} rows go, and one of each path stays, that of its newest file")
        if dry_run or not findings:
            return RepairResult(version, tuple(findings), tuple(changes), ledger.labels)
        counts = Counter(stored_classes(edit.spark, edit.transaction, known.ledger))
        several = rows.join(doubled, _KEY, "left_semi")
        single = _one_of_each_path(several)
        if paths:
            counts.subtract(count_classes(several))
            counts.update(count_classes(single))
        if right:
            wrong = rows.where(_is_wrong(right)).join(doubled, _KEY, "left_anti")
            several, single = several.unionByName(wrong), _corrected(single.unionByName(wrong), right)
        version = edit.commit(REPAIR, several, single.drop(_KEY), counts)
    return RepairResult(version, tuple(findings), tuple(changes), ledger.labels, committed=True)


def _one_of_each_path(rows: DataFrame) -> DataFrame:
    """Keeps the row of the file that was changed last; of several of one file, always the same."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    newest = F.desc_nulls_last(schema.SOURCE_MODIFIED)
    order = [newest, schema.BATCH_ID, schema.CONTENT_HASH, schema.LABEL, schema.SPLIT]
    numbered = rows.withColumn(_NUMBER, F.row_number().over(Window.partitionBy(_KEY).orderBy(*order)))
    return numbered.where(f"{_NUMBER} = 1").drop(_NUMBER)


def _right_number(name: str, labels: Mapping[str, int]) -> str:
    """The SQL of the number of the class that the expression `name` gives; null for classes that are not corrected."""
    return f"CASE {name} {' '.join(f'WHEN {sql_literal(known)} THEN {labels[known]}' for known in labels)} END"


def _is_wrong(labels: Mapping[str, int]) -> str:
    row = f"coalesce({schema.LABEL} <> {_right_number(schema.LABEL_NAME, labels)}, false)"
    box = f"coalesce(box.label <> {_right_number('box.label_name', labels)}, false)"
    return f"({row} OR coalesce(exists({schema.ANNOTATIONS}, box -> {box}), false))"


def _corrected(rows: DataFrame, labels: Mapping[str, int]) -> DataFrame:
    """The rows with their right numbers."""
    from pyspark.sql import functions as F

    label = F.expr(f"coalesce({_right_number(schema.LABEL_NAME, labels)}, {schema.LABEL})")
    number = f"coalesce({_right_number('box.label_name', labels)}, box.label)"
    others = ", ".join(f"'{name}', box.{name}" for name in schema.ANNOTATION_FIELDS[1:])
    boxes = F.expr(f"transform({schema.ANNOTATIONS}, box -> named_struct('label', {number}, {others}))")
    return rows.withColumns({schema.LABEL: label.cast("int"), schema.ANNOTATIONS: boxes})
