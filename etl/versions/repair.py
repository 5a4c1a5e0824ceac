"""Corrects class numbers: rows, boxes and the property get one number for each class, in one commit.

Rows that others have written may carry a number that is another class's; the property may have been overwritten. What
the log remembers stays, so that models that were trained on it are still read rightly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...errors import NotAnImageTableError
from ...results import ReadableResult
from ..commit.known_classes import count_classes, known_classes
from ..commit.transaction import Transaction, sql_literal
from ..log.notes import REPAIR
from ..model import schema
from ..model.class_numbers import ClassNumbers
from ..model.labels import LABELS_PROPERTY, grow_labels, labels_of, labels_property
from ..spark.failures import naming_failures
from .edits import open_edit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, repr=False)
class RepairResult(ReadableResult):
    """The result of a repair, or of a dry run.

    Attributes:
        version: The table's version that holds the result; the version before when nothing was committed.
        findings: Descriptions of what was wrong; empty for a table without damage.
        changes: Descriptions of what is changed.
        labels: The class numbers afterwards.
        committed: Whether a new version was made.
    """

    version: int
    findings: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    labels: dict[str, int] = field(default_factory=dict)
    committed: bool = False


@naming_failures
def repair(spark: SparkSession, location: str, *, dry_run: bool = False) -> RepairResult:
    """Corrects class numbers in rows, boxes and property: each class gets one number.

    Args:
        spark: The session.
        location: Path, URI or name of the table.
        dry_run: Only tell what would be changed.

    Raises:
        NotADeltaTableError: If there is no table.
        NotAnImageTableError: If lakelens did not create it.
        TableConflictError: If another writer was faster; nothing was committed.
    """
    edit = open_edit(spark, location)
    transaction = edit.transaction
    numbers = known_classes(edit.spark, transaction, look_at_rows=True).numbers
    stated, broken = _stated(transaction)
    unnumbered = sorted({found.name for found in numbers.wrong} - numbers.labels.keys())
    largest = max((found.number for found in numbers.wrong), default=-1)
    labels = grow_labels(numbers.labels, unnumbered, largest)
    lacking = tuple(f"the property lacks {name!r}" for name in numbers.labels if name not in stated and not broken)
    surplus = tuple(f"the property has {name!r}, with another's number" for name in stated if name not in labels)
    findings = (*broken, *numbers.findings(), *lacking, *surplus)
    changes = tuple(_changes(numbers, labels, stated))
    if dry_run or not findings:
        return RepairResult(transaction.version, findings, changes, labels)
    rows = edit.rows()
    note = edit.note(REPAIR, labels, count_classes(rows))
    properties = {LABELS_PROPERTY: labels_property(labels)}
    wrong = {found.name: labels[found.name] for found in numbers.wrong}
    if wrong:
        found = rows.where(_is_wrong(wrong))
        version = edit.commit(note, found, _corrected(found, wrong), properties)
    else:  # a batch without rows would not be committed
        version = edit.commit_properties(note, properties)
    return RepairResult(version, findings, changes, labels, committed=True)


def _stated(transaction: Transaction) -> tuple[dict[str, int], tuple[str, ...]]:
    """The numbers of the property, and what is wrong with it if it cannot be read."""
    text = transaction.property(LABELS_PROPERTY)
    try:
        return labels_of({} if text is None else {LABELS_PROPERTY: text}), ()
    except NotAnImageTableError as error:
        return {}, (str(error),)


def _changes(numbers: ClassNumbers, labels: Mapping[str, int], stated: Mapping[str, int]) -> Iterable[str]:
    for found in numbers.wrong:
        yield f"{found.rows} of {found.name!r}: number {found.number} becomes {labels[found.name]}"
    if dict(stated) != dict(labels):
        yield f"the property {LABELS_PROPERTY} becomes {labels_property(labels)}"


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
    mended = {schema.LABEL: label.cast("int"), schema.ANNOTATIONS: boxes}
    return rows.withColumns(mended)
