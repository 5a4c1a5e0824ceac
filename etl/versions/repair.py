"""Repairs what other writers have stored, in one commit: wrong class numbers, and rows of a path beyond the first."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...results import ReadableResult
from ...spark.port import kept
from ...table import Table
from ..commit.known_classes import count_classes, known_classes, stored_classes
from ..commit.notes import REPAIR
from ..model import schema
from ..spark.catalog import sql_literal
from ..spark.failures import naming_failures
from ..spark.path_forms import column_in_one_form
from .edits import open_edit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

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

    order = [
        F.desc_nulls_last(schema.SOURCE_MODIFIED),
        schema.BATCH_ID,
        schema.CONTENT_HASH,
        schema.LABEL,
        schema.SPLIT,
    ]
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
