"""The classes of a table at one version: their numbers, and how many rows each has, by its ledger and its rows.

Rows are read only for versions that the ledger lacks: those of other writers, and of ingests that were killed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import ClassNumbersError, InvalidArgumentError, LakelensError, MissingDependencyError, StoreError
from ...ledger.ledger import Ledger, WrongNumber
from ...ledger.store import FOLDER, change, read
from ...table import Table
from ..model import schema
from ..model.classes import NO_CLASS
from ..spark.catalog import is_delta_table, read_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from .transaction import Transaction

logger = logging.getLogger(__name__)

_MOST_NAMED = 5


@dataclass(frozen=True)
class KnownClasses:
    """The classes at one version."""

    table: Table  # The table, by its path
    ledger: Ledger  # Its ledger, with the classes that other writers have stored
    # Rows and boxes by class name and number, if they were looked at; empty otherwise
    rows: Mapping[tuple[str, int], int] | None = None
    wrong: tuple[WrongNumber, ...] = ()  # Rows and boxes with a number that is not that of their class

    @property
    def labels(self) -> dict[str, int]:
        """Class numbers by name, ordered by number."""
        return self.ledger.labels

    def reserve(self, names: Iterable[str], largest: int = -1) -> Ledger:
        """Gives numbers to new classes in the ledger, before rows are written; returns the ledger.

        Two writers that reserve at once get different numbers. A number whose rows are never committed stays reserved.
        """
        wanted, rows = list(names), self.rows or {}

        def reserved(ledger: Ledger) -> Ledger:
            return ledger.settled(rows)[0].reserved(wanted, largest)

        try:
            return change(self.table, reserved)
        except (InvalidArgumentError, MissingDependencyError, StoreError) as error:
            if self.ledger.versions:  # it has one, which has to be changed
                raise
            logger.warning(
                "%s has no ledger (%s): its rows carry the class numbers, so a class without rows loses its number",
                self.table.path,
                error,
            )
            return self.ledger.reserved(wanted, largest)


def known_classes(spark: SparkSession, transaction: Transaction, *, look_at_rows: bool = False) -> KnownClasses:
    """Finds the classes at a transaction's version."""
    table = transaction.table
    ledger = ledger_of(spark, table)
    if ledger.counts_at(transaction.version) is not None and not look_at_rows:
        return KnownClasses(table, ledger)
    rows = _numbers_in_rows(read_table(spark, transaction.path, transaction.version))
    settled, wrong = ledger.settled(rows)
    return KnownClasses(table, settled, rows, wrong)


def sound_classes(spark: SparkSession, transaction: Transaction) -> KnownClasses:
    """Finds what `known_classes` finds, and refuses damaged numbers."""
    known = known_classes(spark, transaction)
    if known.wrong:
        more = f"; and {len(known.wrong) - _MOST_NAMED} more" if len(known.wrong) > _MOST_NAMED else ""
        raise ClassNumbersError(
            f"{transaction.path}@{transaction.version}: the class numbers are damaged: "
            f"{'; '.join(map(str, known.wrong[:_MOST_NAMED]))}{more}. "
            f"`lakelens table repair {transaction.path} --dry-run` shows what it would change, and changes it without"
        )
    return known


def ledger_of(spark: SparkSession, table: Table) -> Ledger:
    """Reads the ledger of a table; an empty one where this process cannot read it and Spark sees none either."""
    try:
        return read(table)
    except (InvalidArgumentError, MissingDependencyError):  # a place that can have none
        return Ledger()
    except StoreError:
        if is_delta_table(spark, f"{table.path}/{FOLDER}/ledger"):
            raise
        return Ledger()


def record_classes(
    table: Table,
    version: int,
    counts: Mapping[str, int] | None,
    labels: Mapping[str, int] | None = None,
    renamed: tuple[str, str] | None = None,
) -> None:
    """Records the rows by class of a version just committed, and the old and new name of a class that it renames."""

    def recorded(ledger: Ledger) -> Ledger:
        new = {(name, number): 0 for name, number in (labels or {}).items() if name not in ledger.numbers}
        settled, _ = ledger.settled(new)
        settled = settled if renamed is None else settled.renamed(*renamed)
        return settled if counts is None else settled.recorded(version, counts)

    try:
        change(table, recorded)
    except LakelensError as error:  # the next writer looks at the rows
        logger.warning("%s: the rows by class of version %d are not recorded: %s", table.path, version, error)


def stored_classes(spark: SparkSession, transaction: Transaction, ledger: Ledger) -> Mapping[str, int]:
    """Returns the rows by class of a transaction's version: as recorded if the sum is the log's, else counted."""
    counts = ledger.counts_at(transaction.version)
    if counts is not None and sum(counts.values()) == transaction.rows():
        return counts
    return count_classes(read_table(spark, transaction.path, transaction.version))


def count_classes(rows: DataFrame) -> Mapping[str, int]:
    """Counts rows by class."""
    from pyspark.sql import functions as F

    # As SQL: the function of pyspark fails on a column that is not resolved yet in Spark 3.5.0.
    name = F.coalesce(F.expr(f"nullif({schema.LABEL_NAME}, '')"), F.lit(NO_CLASS)).alias("name")
    return Counter({row["name"]: row["count"] for row in rows.groupBy(name).count().collect()})


def _numbers_in_rows(rows: DataFrame) -> Counter[tuple[str, int]]:
    """Counts the pairs of class and number in rows and boxes."""
    from pyspark.sql import functions as F

    own = rows.select(schema.LABEL_NAME, schema.LABEL)
    boxes = rows.select(F.explode(schema.ANNOTATIONS).alias("box")).select("box.label_name", "box.label")
    pairs = own.unionByName(boxes).where(f"{schema.LABEL_NAME} <> '' AND {schema.LABEL} IS NOT NULL")
    found = pairs.groupBy(schema.LABEL_NAME, schema.LABEL).count().collect()
    return Counter({(row[0], row[1]): row["count"] for row in found})
