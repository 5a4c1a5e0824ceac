"""Renames a class: its rows and boxes get the new name, its number stays, and later ingests know both names."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import InvalidArgumentError, LakelensError
from ...ledger.ledger import Ledger
from ...ledger.store import change, read
from ...options import suggestion
from ...results import ReadableResult
from ...spark.port import count_rows
from ...table import Table
from ..commit.known_classes import sound_classes, stored_classes
from ..commit.notes import RENAME
from ..model import schema
from ..model.class_names import MAX_NAME_LENGTH, class_name
from ..model.labels import NO_CLASS
from ..spark.failures import naming_failures
from .edits import open_edit

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


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
    """Renames a class as one commit; a later ingest stores files of either name under the new one.

    One that was killed before its commit is completed by the same call.
    """
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
                with contextlib.suppress(LakelensError):  # the commit's error is what matters
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
