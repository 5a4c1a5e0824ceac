"""The predictions table: its columns, and appends that happen exactly once, even if repeated or concurrent.

Every append carries the next number under an application id that belongs to one model and one image table. Delta
refuses a number that was written before, and of two writers that read the same number one fails. So of two scoring jobs
that saw the same rows unscored only one can add them, and a repeated commit adds nothing.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import (
    InvalidArgumentError,
    NotADeltaTableError,
    PredictionsSchemaError,
    UnsupportedTableFeatureError,
)
from ...etl.spark.catalog import delta_table, is_delta_table, path_of, read_table, require_schema, sql_name
from ...locations import absolute, has_scheme, is_table_name
from ...log.opening import open_table
from ...table import Table
from ..model.arrow_batches import PREDICTION_DDL

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import Column, DataFrame, SparkSession

# Columns copied from the image table to the predictions, if the image table has them.
PASSED_DDL = "path STRING, content_hash STRING, label INT, label_name STRING, split STRING"
PASSED = tuple(column.split()[0] for column in PASSED_DDL.split(", "))
PREDICTED = tuple(column.split()[0] for column in PREDICTION_DDL.split(", "))
ORIGIN_DDL = (
    "model_uri STRING, checkpoint_digest STRING, table STRING, version BIGINT, scored_at TIMESTAMP, batch_id STRING"
)
DDL = f"{PASSED_DDL}, {PREDICTION_DDL}, {ORIGIN_DDL}"

# Delta's names of the types above.
_TYPES = {
    "STRING": "string",
    "INT": "integer",
    "BIGINT": "long",
    "FLOAT": "float",
    "TIMESTAMP": "timestamp",
    "ARRAY<FLOAT>": "array<float>",
}
COLUMNS = {name: _TYPES[kind] for name, kind in (column.split() for column in DDL.split(", "))}
# A `batch_id` starts with the mark of its model, table and version. Delta's statistics hold 32 characters of a text.
_MARK, _BATCH = 20, 32
# Statistics of the columns that reads filter on; for a list of floats they are useless.
_PROPERTIES = {"delta.dataSkippingStatsColumns": "path,label,split,prediction,checkpoint_digest,table,version,batch_id"}


@dataclass(frozen=True)
class PredictionsState:
    """The state of a predictions table with regard to one model and image table.

    Attributes:
        version: The table's version; None when the table does not exist.
        transaction: Number of the last append for this model and image table; None before the first.
    """

    version: int | None
    transaction: int | None


def predictions_location(predictions: str | Path | None, table: Table) -> str:
    """Gives the location of a predictions table, and checks it as far as possible without Spark.

    Raises:
        InvalidArgumentError: If no location is given, or it is the image table.
        NotADeltaTableError: If the location has something other than a Delta table.
        PredictionsSchemaError: If a column is missing or has another type.
    """
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
            _check_schema(target, open_table(Table(target, table.storage_options)))
        except NotADeltaTableError:
            _require_vacant(target)
    return target


class PredictionsTable:
    """A Delta table of predictions, by path, URI or catalog name; it need not exist.

    Args:
        spark: A session with Delta.
        location: Path, URI or name.
        digest: Digest of the checkpoint that scores.
        table: Location of the image table that is scored.
        storage_options: Access to an object store, under delta-rs' names.
    """

    def __init__(
        self,
        spark: SparkSession,
        location: str,
        *,
        digest: str,
        table: str,
        storage_options: Mapping[str, str],
    ) -> None:
        self._spark = spark
        self.location = absolute(location)
        self._storage_options = storage_options
        place = hashlib.sha256(table.encode()).hexdigest()[:16]
        self._application = f"lakelens.score.{digest}.{place}"

    def state(self) -> PredictionsState:
        """Reads the table's version and the number of the last append.

        Raises:
            NotADeltaTableError: If the location has something other than a Delta table.
            PredictionsSchemaError: If a column is missing or has another type.
        """
        if not is_delta_table(self._spark, self.location):
            require_schema(self._spark, self.location)
            _require_vacant(self.location)
            return PredictionsState(None, None)
        table = self._opened()
        _check_schema(self.location, table)
        return PredictionsState(table.version(), table.transaction_version(self._application))

    def state_after(self, before: PredictionsState, note: str) -> tuple[PredictionsState, bool]:
        """Reads the state, and whether a commit after `before` has the note.

        An append tried from `before` may silently have added nothing, because another with its number was faster.
        """
        if before.version is None and not is_delta_table(self._spark, self.location):
            return before, False
        table = self._opened()
        commits = table.version() - (-1 if before.version is None else before.version)
        history = table.history(commits) if commits > 0 else []
        state = PredictionsState(table.version(), table.transaction_version(self._application))
        return state, any(entry.get("userMetadata") == note for entry in history)

    def read(self, version: int) -> DataFrame:
        """Reads one version."""
        return read_table(self._spark, self.location, version)

    def append(self, rows: DataFrame, state: PredictionsState, note: str) -> None:
        """Adds rows in one commit, unless another append for this model and image table came after `state`.

        In that case Delta either raises its conflict or silently adds nothing; `state_after` shows which.

        Args:
            rows: Rows of `COLUMNS`.
            state: The state from which the rows were chosen.
            note: Names this append in the table's history.
        """
        if state.version is None and is_table_name(self.location):
            properties = ", ".join(f"'{name}' = '{value}'" for name, value in _PROPERTIES.items())
            self._spark.sql(
                f"CREATE TABLE IF NOT EXISTS {self.location} ({_quoted_ddl()}) USING DELTA TBLPROPERTIES ({properties})"
            )
        writer = rows.select(*COLUMNS).write.format("delta").mode("append").option("userMetadata", note)
        writer = writer.option("txnAppId", self._application).option("txnVersion", str(next_number(state)))
        if is_table_name(self.location):
            writer.saveAsTable(self.location)
        else:
            writer.options(**({} if state.version is not None else _PROPERTIES)).save(self.location)

    def remove(self, condition: Column) -> None:
        """Removes rows in one commit."""
        delta_table(self._spark, self.location).delete(condition)

    def _opened(self) -> DeltaTable:
        return open_table(Table(absolute(path_of(self._spark, self.location)), self._storage_options))


def mark_of(digest: str, table: str, table_id: str, version: int) -> str:
    """Makes the mark of a model's scoring of one version of a table."""
    return hashlib.sha256(f"{digest}\n{table}\n{table_id}\n{version}".encode()).hexdigest()[:_MARK]


def new_batch_id(mark: str) -> str:
    """Makes a `batch_id` with a mark."""
    return mark + uuid.uuid4().hex[: _BATCH - _MARK]


def next_number(state: PredictionsState) -> int:
    """The number of the next append for this model and image table."""
    return 0 if state.transaction is None else state.transaction + 1


def _require_vacant(location: str) -> None:
    """Refuses to make a Delta table in a folder that holds other files."""
    if has_scheme(location) or is_table_name(location):
        return
    path = Path(location)
    # A killed first append leaves data files without a log; they belong to no version.
    foreign = path.is_dir() and any(not child.name.startswith((".", "_", "part-")) for child in path.iterdir())
    if path.is_file() or foreign:
        raise NotADeltaTableError(f"{location} exists and is not a Delta table; give the predictions a separate path")


def _check_schema(location: str, table: DeltaTable) -> None:
    fields = json.loads(table.schema().to_json())["fields"]
    _check_columns(location, {field["name"]: _type_name(field["type"]) for field in fields})


def _check_columns(location: str, found: Mapping[str, str]) -> None:
    for name, kind in COLUMNS.items():
        if name not in found:
            raise PredictionsSchemaError(
                f"{location} has no column {name!r}, so it is not a predictions table of this lakelens; its columns: "
                f"{', '.join(found)}. Add it (ALTER TABLE {sql_name(location)} ADD COLUMN {name} ...), or score into "
                "another table"
            )
        if found[name] != kind:
            raise PredictionsSchemaError(
                f"{location}: column {name!r} is of type {found[name]}, predictions need {kind}; score into "
                "another table"
            )


def _type_name(kind: object) -> str:
    if isinstance(kind, str):
        return kind
    if isinstance(kind, Mapping) and kind.get("type") == "array":
        return f"array<{_type_name(kind['elementType'])}>"
    return json.dumps(kind)


def _quoted_ddl() -> str:
    return ", ".join(f"`{name}` {kind}" for name, kind in (column.split() for column in DDL.split(", ")))
