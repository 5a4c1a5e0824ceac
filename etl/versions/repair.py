"""Corrects class numbers: rows and boxes that others have written get the numbers of the ledger, in one commit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...results import ReadableResult
from ...table import Table
from ..commit.known_classes import known_classes, stored_classes
from ..commit.notes import REPAIR
from ..model import schema
from ..spark.catalog import sql_literal
from ..spark.failures import naming_failures
from .edits import open_edit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession


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
    """Corrects class numbers in rows and boxes: each class gets one number."""
    edit = open_edit(spark, table)
    known = known_classes(edit.spark, edit.transaction, look_at_rows=True)
    version = edit.transaction.version
    new = sorted({one.name for one in known.wrong} - known.ledger.numbers.keys())
    largest = max((one.number for one in known.wrong), default=-1)
    ledger = known.ledger.reserved(new, largest) if dry_run or not known.wrong else known.reserve(new, largest)
    right = {one.name: ledger.numbers[one.name] for one in known.wrong}
    findings = tuple(map(str, known.wrong))
    changes = tuple(f"{one.rows} of {one.name!r}: number {one.number} becomes {right[one.name]}" for one in known.wrong)
    if dry_run or not findings:
        return RepairResult(version, findings, changes, ledger.labels)
    found = edit.rows().where(_is_wrong(right))
    version = edit.commit(
        REPAIR, found, _corrected(found, right), stored_classes(edit.spark, edit.transaction, known.ledger)
    )
    return RepairResult(version, findings, changes, ledger.labels, committed=True)


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
