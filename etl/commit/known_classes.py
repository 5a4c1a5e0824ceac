"""The classes of a table before an ingest: their numbers, and how many rows each has.

Nearly always the latest commit's note tells both. Older commits are read while they are of others; the numbers of the
rows are looked at where others may have written some.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ...errors import ClassNumbersError, NotAnImageTableError, TableError
from ...locations import absolute
from ...stores.data_files import local_form
from ..log.log_walk import walk_log
from ..log.notes import (
    MOST_COMMITS,
    NotedCommit,
    commits_by_spark,
    commits_in_files,
    remember,
    renamed_classes,
)
from ..log.opening import log_of
from ..model import schema
from ..model.aliases import names_at
from ..model.class_numbers import ClassNumbers, merge_older, settle
from ..model.labels import LABELS_PROPERTY, NO_CLASS, labels_of
from ..spark.catalog import is_local_to_spark, read_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..log.snapshot import Snapshot
    from .transaction import Transaction

_Found = TypeVar("_Found")


@dataclass(frozen=True)
class KnownClasses:
    """What is known at one version.

    Attributes:
        numbers: The class numbers.
        counts: Rows by class, as a note says; see `count_classes`. None without one.
    """

    numbers: ClassNumbers
    counts: Mapping[str, int] | None


def known_classes(spark: SparkSession, transaction: Transaction, *, look_at_rows: bool = False) -> KnownClasses:
    """Finds what is known of the classes at a transaction's version.

    Args:
        spark: The session.
        transaction: The transaction.
        look_at_rows: Whether to look at the rows in any case, and to pass over a property that is broken.

    Raises:
        NotAnImageTableError: If the property is broken.
    """
    place = local_form(absolute(transaction.path)) if is_local_to_spark(spark, transaction.path) else None
    memory = _read_commits(spark, transaction, place, remember)
    noted = memory.labels if memory is not None else _older_labels(place)
    text = transaction.property(LABELS_PROPERTY)
    stated: Mapping[str, int] = {}
    try:
        stated = labels_of({} if text is None else {LABELS_PROPERTY: text})
    except NotAnImageTableError:
        if not look_at_rows:
            raise
    follows = memory is not None and memory.rows_follow and stated.items() <= noted.items()
    rows = Counter[tuple[str, int]]()
    if look_at_rows or not follows:
        rows = _numbers_in_rows(read_table(spark, transaction.path, transaction.version))
    if any(name not in noted and number in noted.values() for name, number in stated.items()):
        noted = _as_named_in(rows, noted, stated, _read_commits(spark, transaction, place, renamed_classes))
    return KnownClasses(settle(noted, stated, rows), None if memory is None else memory.counts)


def sound_classes(spark: SparkSession, transaction: Transaction, location: str) -> KnownClasses:
    """Finds what `known_classes` finds, and refuses damaged numbers.

    Raises:
        ClassNumbersError: If two classes of the table have one number, or one has two.
    """
    known = known_classes(spark, transaction)
    if known.numbers.findings():
        raise ClassNumbersError(
            f"{location}@{transaction.version}: the class numbers are damaged: {known.numbers.summary()}. "
            f"`lakelens table repair {location}` says what it would change, and changes it with --yes"
        )
    return known


def count_classes(rows: DataFrame, noted: Mapping[str, int] | None = None) -> Mapping[str, int]:
    """Counts rows by class, or takes what a note says of them if its sum is right.

    Delta counts all rows by its log alone. Public writers note what they plan, bad files included.
    """
    from pyspark.sql import functions as F

    if noted is not None and sum(noted.values()) == rows.count():
        return noted
    name = F.coalesce(F.nullif(schema.LABEL_NAME, F.lit("")), F.lit(NO_CLASS)).alias("name")
    return Counter({row["name"]: row["count"] for row in rows.groupBy(name).count().collect()})


def labels_in_log(
    latest: Snapshot, stated: Mapping[str, int], storage_options: Mapping[str, str] | None
) -> dict[str, int]:
    """Every class number that a version's property or the log up to it knows, without Spark.

    Args:
        latest: The version.
        stated: The numbers of its property.
        storage_options: Access to an object store.
    """
    with log_of(latest.location) as log:
        memory = remember(commits_in_files(log, latest.version, storage_options))
    noted = memory.labels if memory is not None else _older_labels(latest.location, storage_options)
    return settle(noted, stated, {}).labels


def _read_commits(
    spark: SparkSession, transaction: Transaction, place: str | None, read: Callable[[Iterator[NotedCommit]], _Found]
) -> _Found:
    if place is None:
        return read(commits_by_spark(spark, transaction.path, transaction.version))
    with log_of(place) as log:
        return read(commits_in_files(log, transaction.version))


def _as_named_in(
    rows: Mapping[tuple[str, int], int],
    noted: Mapping[str, int],
    stated: Mapping[str, int],
    renamed: Mapping[str, str],
) -> dict[str, int]:
    """Gives noted numbers the names that a plain RESTORE has brought back, where no row has the other name."""
    in_rows = {name for name, _ in rows}
    forth = {old: new for old, new in renamed.items() if new not in in_rows}
    back = {old: new for old, new in renamed.items() if old not in in_rows}
    return names_at(noted, stated, forth, back)


def _older_labels(location: str | None, storage_options: Mapping[str, str] | None = None) -> dict[str, int]:
    """The numbers in the properties of older versions, where no commit has a note of them."""
    if location is None:  # only Spark sees the log, and has no way to tell them
        return {}
    versions: list[Mapping[str, int]] = []
    try:
        for state in walk_log(location, MOST_COMMITS, storage_options):
            try:
                versions.append(labels_of(state.configuration))
            except NotAnImageTableError:
                continue
    except TableError:  # a feature that delta-rs does not know
        return {}
    return merge_older(versions)


def _numbers_in_rows(rows: DataFrame) -> Counter[tuple[str, int]]:
    """Counts the pairs of class and number in rows and boxes."""
    from pyspark.sql import functions as F

    own = rows.select(schema.LABEL_NAME, schema.LABEL)
    boxes = rows.select(F.explode(schema.ANNOTATIONS).alias("box")).select("box.label_name", "box.label")
    pairs = own.unionByName(boxes).where(f"{schema.LABEL_NAME} <> '' AND {schema.LABEL} IS NOT NULL")
    found = pairs.groupBy(schema.LABEL_NAME, schema.LABEL).count().collect()
    return Counter({(row[0], row[1]): row["count"] for row in found})
