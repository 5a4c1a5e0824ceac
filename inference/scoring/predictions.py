"""The predictions table: its columns, and appends that happen exactly once, even if repeated or concurrent.

Every append carries the next number under an application id that belongs to one model and one image table. Delta
refuses a number that was written before, and of two writers that read the same number one fails. So of two scoring jobs
that saw the same rows unscored only one can add them, and a repeated commit adds nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import (
    InvalidArgumentError,
    NotADeltaTableError,
    PredictionsSchemaError,
    TableConflictError,
    UnsupportedTableFeatureError,
)
from ...etl.spark.catalog import is_delta_table, path_of, read_table, require_schema, sql_name
from ...etl.spark.failures import conflicts_named
from ...locations import absolute, has_scheme, is_table_name
from ...log.delta_types import type_name
from ...log.opening import open_table
from ...table import Table
from ...training.tasks.detection import DETECTIONS
from ...training.tasks.task import Task

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import Column, DataFrame, SparkSession

# Columns copied from the image table to the predictions, if the image table has them.
PASSED_DDL = "path STRING, content_hash STRING, label INT, label_name STRING, split STRING"
PASSED = tuple(column.split()[0] for column in PASSED_DDL.split(", "))
_BEFORE = dict(column.split() for column in PASSED_DDL.split(", "))
_AFTER = {
    "error": "STRING",
    "model_uri": "STRING",
    "checkpoint_digest": "STRING",
    "table": "STRING",
    "version": "BIGINT",
    "scored_at": "TIMESTAMP",
    "batch_id": "STRING",
}
# What every predictions table has, whatever the task.
SHARED = (*_BEFORE, *_AFTER)
# A `batch_id` starts with the mark of its model, table and version, then that of the columns by which rows are known.
# Delta's statistics hold 32 characters of a text.
_MARK, _COLUMNS_MARK, _BATCH = 20, 4, 32
# Delta's statistics are of the columns that reads filter on, and of a prediction that is a number.
_STATISTICS = "delta.dataSkippingStatsColumns"
# The least score of the boxes that a table keeps; without it, all boxes of the model.
_MIN_SCORE = "lakelens.minScore"
_FILTERED = ("path", "label", "split", "error", "checkpoint_digest", "table", "version", "batch_id")


@dataclass(frozen=True)
class PredictionsState:
    """The state of a predictions table with regard to one model and image table."""

    version: int | None  # The table's version; None when the table does not exist
    transaction: int | None  # Number of the last append for this model and image table; None before the first
    log: DeltaTable | None = field(default=None, repr=False, compare=False)  # The log at the version, if it was opened

    def may_have_errors(self) -> bool:
        """Returns whether a row has an error; True as well if the log's statistics do not count them."""
        counted, nulls = "num_records", "null_count.error"
        columns = self._statistics(counted, nulls)
        return columns is None or any(rows is None or rows != without for rows, without in zip(*columns, strict=True))

    def is_complete(self, mark: str, split: str | None, rows: int) -> bool:
        """Returns whether the log's statistics show that the table has all rows of a version and split."""
        # They count data files all of whose rows have the mark and the split. After False, the rows are to be compared.
        bounds = ("batch_id",) if split is None else ("batch_id", "split")
        ends = [f"{end}.{name}" for end in ("min", "max", "null_count") for name in bounds]
        columns = self._statistics("num_records", *ends)
        # A deletion vector leaves the number of its file's rows as it was.
        if self.log is None or columns is None or "deletionVectors" in (self.log.protocol().reader_features or ()):
            return False
        found = 0
        for count, *statistics in zip(*columns, strict=True):
            least, most, nulls = (statistics[at : at + len(bounds)] for at in range(0, len(ends), len(bounds)))
            is_of_scoring = all(str(text[0]).startswith(mark) for text in (least, most))
            # Statistics that are missing are None.
            is_known = count is not None and all(number == 0 for number in nulls)
            if is_known and is_of_scoring and least[1:] == most[1:] == ([] if split is None else [split]):
                found += count
        return found == rows

    def may_have(self, mark: str) -> bool:
        """Returns whether a row may have a mark; False if the log's statistics show that none has."""
        columns = self._statistics("min.batch_id", "max.batch_id")
        if columns is None:
            return True
        bounds = zip(*columns, strict=True)
        return any(None in (least, most) or least[:_MARK] <= mark <= most[:_MARK] for least, most in bounds)

    @cached_property
    def _files(self) -> Any:
        return None if self.log is None else self.log.get_add_actions(flatten=True)

    def _statistics(self, *names: str) -> list[list[Any]] | None:
        """Returns the values of statistics, one for each data file; None if the log lacks one of them."""
        if self._files is None or not set(names) <= set(self._files.schema.names):
            return None
        return [self._files.column(name).to_pylist() for name in names]


def columns_of(task: Task | type[Task]) -> dict[str, str]:
    """Gives the columns of a predictions table of a task, with their SQL types."""
    return {**_BEFORE, **task.prediction_columns, **_AFTER}


def predictions_location(
    predictions: str | Path | None, table: Table, task: Task, min_score: float | None = None
) -> str:
    """Gives the location of a predictions table, and checks it as far as possible without Spark."""
    if not isinstance(predictions, (str, Path)):
        raise InvalidArgumentError(
            f"predictions={predictions!r}: give the table that takes the predictions, by path, URI or catalog name"
        )
    target = Table.unversioned(predictions, "predictions").location
    if target.rstrip("/") == table.location.rstrip("/"):
        raise InvalidArgumentError(f"predictions and table are both {target}; predictions need a separate table")
    if is_table_name(target):
        return target
    with suppress(UnsupportedTableFeatureError):
        try:
            _check_table(target, open_table(Table(target, table.storage_options)), task, min_score)
        except NotADeltaTableError:
            _require_vacant(target)
    return target


class PredictionsTable:
    """A Delta table of predictions, by path, URI or catalog name; it need not exist."""

    def __init__(
        self,
        spark: SparkSession,
        location: str,
        *,
        task: Task,
        digest: str,
        table: str,
        storage_options: Mapping[str, str],
        min_score: float | None = None,
    ) -> None:
        self._spark = spark
        self.task = task
        self._min_score = min_score
        self.location = absolute(location)
        self._storage_options = storage_options
        place = hashlib.sha256(table.encode()).hexdigest()[:16]
        self._application = f"lakelens.score.{digest}.{place}"

    @property
    def copied(self) -> tuple[str, ...]:
        """The columns that a copied row keeps; the others name the run that has written it."""
        return (*self.task.prediction_columns, "error", "model_uri", "scored_at")

    @property
    def table(self) -> Table:
        """The table, which exists, by its path."""
        return Table(absolute(path_of(self._spark, self.location)), self._storage_options)

    def exists(self) -> bool:
        """Returns whether the table has been made."""
        return self._log() is not None

    def state(self) -> PredictionsState:
        """Reads the table's version and the number of the last append."""
        table = self._log()
        if table is None:
            require_schema(self._spark, self.location)
            _require_vacant(self.location)
            return PredictionsState(None, None)
        _check_table(self.location, table, self.task, self._min_score)
        return self._state_of(table)

    def _state_of(self, table: DeltaTable) -> PredictionsState:
        return PredictionsState(table.version(), table.transaction_version(self._application), table)

    def read(self, version: int | None) -> DataFrame:
        """Reads one version; None reads the latest."""
        return read_table(self._spark, self.location, version)

    def append(self, rows: DataFrame, state: PredictionsState, note: str) -> tuple[PredictionsState, bool]:
        """Adds rows in one commit, unless another append for this model and image table came after `state`."""
        # In that case Delta either raises its conflict or silently adds nothing; only the history shows which.
        number = 0 if state.transaction is None else state.transaction + 1
        try:
            with conflicts_named(self.location):
                self._write(rows, state, note, number)
        except TableConflictError:
            if state.version is None and not self.exists():
                return state, False
        table = self._opened()
        commits = table.version() - (-1 if state.version is None else state.version)
        if any(entry.get("userMetadata") == note for entry in (table.history(commits) if commits > 0 else [])):
            return PredictionsState(table.version(), number, table), True
        return self._state_of(table), False

    def remove(self, condition: str) -> None:
        """Removes the rows of a condition of SQL in one commit; without such rows there is none."""
        if not self.read(None).where(condition).isEmpty():
            self._spark.sql(f"DELETE FROM {sql_name(self.location)} WHERE {condition}").collect()  # noqa: S608  of `remaining`

    def _write(self, rows: DataFrame, state: PredictionsState, note: str, number: int) -> None:
        columns = columns_of(self.task)
        numbers = (name for name, kind in self.task.prediction_columns.items() if kind == "INT")
        statistics = ",".join((*_FILTERED, *numbers))
        if state.version is None and (is_table_name(self.location) or self._min_score is not None):
            ddl = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
            properties = {_STATISTICS: statistics}
            if self._min_score is not None:
                properties[_MIN_SCORE] = f"{self._min_score!r}"
            listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
            self._spark.sql(
                f"CREATE TABLE IF NOT EXISTS {sql_name(self.location)} ({ddl}) USING DELTA TBLPROPERTIES ({listed})"
            )
            # Another job may have created it with another score.
            _check_table(self.location, self._opened(), self.task, self._min_score)
        if self._min_score is not None:
            rows = rows.withColumn(DETECTIONS, from_score_on(self._min_score))
        writer = rows.select(*columns).write.format("delta").mode("append").option("userMetadata", note)
        writer = writer.option("txnAppId", self._application).option("txnVersion", str(number))
        if is_table_name(self.location):
            writer.saveAsTable(self.location)
        else:
            writer.options(**({} if state.version is not None else {_STATISTICS: statistics})).save(self.location)

    def _log(self) -> DeltaTable | None:
        """Opens the table's log, that of a path without Spark; None if the table has not been made."""
        if is_table_name(self.location):
            return self._opened() if is_delta_table(self._spark, self.location) else None
        try:
            return self._opened()
        except NotADeltaTableError:
            return None

    def _opened(self) -> DeltaTable:
        return open_table(self.table)


def mark_of(digest: str, table: str, table_id: str, version: int) -> str:
    """Makes the mark of a model's scoring of one version of a table."""
    return hashlib.sha256(f"{digest}\n{table}\n{table_id}\n{version}".encode()).hexdigest()[:_MARK]


def with_columns(mark: str, *columns: str) -> str:
    """Adds to a mark that of the columns by which rows are known; no `batch_id` has a dot there by chance."""
    return mark + "." + hashlib.sha256("\n".join(columns).encode()).hexdigest()[:_COLUMNS_MARK]


def new_batch_id(mark: str) -> str:
    """Makes a `batch_id` that starts with a mark."""
    return mark + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[: _BATCH - len(mark)]


def _require_vacant(location: str) -> None:
    """Refuses to make a Delta table in a folder that holds other files."""
    if has_scheme(location) or is_table_name(location):
        return
    path = Path(location)
    # A killed first append leaves data files without a log; they belong to no version.
    foreign = path.is_dir() and any(not child.name.startswith((".", "_", "part-")) for child in path.iterdir())
    if path.is_file() or foreign:
        raise NotADeltaTableError(f"{location} exists and is not a Delta table; give the predictions a separate path")


def from_score_on(least_score: float) -> Column:
    """The detections of a row with at least a score, which compares as the float that a detection has."""
    from pyspark.sql import functions

    return functions.expr(f"filter({DETECTIONS}, box -> box.score >= cast({least_score!r} as float))")


def _check_table(location: str, table: DeltaTable, task: Task, min_score: float | None) -> None:
    """Checks that a predictions table has the columns of a task, and keeps the boxes that a call writes."""
    fields = json.loads(table.schema().to_json())["fields"]
    found = {field["name"]: type_name(field["type"]) for field in fields}
    for name, kind in columns_of(task).items():
        if name not in found:
            raise PredictionsSchemaError(
                f"{location} has no column {name!r}, so it is not a predictions table of {task.name}; its columns: "
                f"{', '.join(found)}. Add it (ALTER TABLE {sql_name(location)} ADD COLUMN {name} ...), or score into "
                "another table"
            )
        if found[name] != _delta_name(kind):
            raise PredictionsSchemaError(
                f"{location}: column {name!r} is of type {found[name]}, predictions need {_delta_name(kind)}; score "
                "into another table"
            )

    kept = table.metadata().configuration.get(_MIN_SCORE)
    if (None if kept is None else float(kept)) != min_score:
        known = "all boxes" if kept is None else f"only boxes with a score of at least {kept} (--min-score {kept})"
        asked = "all boxes, as every evaluation does" if min_score is None else f"boxes from {min_score!r} on"
        raise PredictionsSchemaError(
            f"{location} keeps {known}; this call writes {asked}: give it another predictions table"
        )


def _delta_name(kind: str) -> str:
    names = {"int": "integer", "bigint": "long"}
    return re.sub(r"\w+", lambda found: names.get(found[0], found[0]), kind.lower().replace(" ", ""))
