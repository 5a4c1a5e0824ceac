"""Scores one version of an image table into a predictions table: only what is new, and each row once."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgumentError, TableConflictError
from ..etl.conflicts import conflicts_named
from ..locations import absolute
from ..scorings import Scoring, record_scoring
from ..session import require_delta
from .arrow import PREDICTION_DDL, predict_arrow
from .failures import typed_failures
from .models import ModelRef, resolve_model
from .predictions import PASSED_DDL, PredictionsState, PredictionsTable, Written
from .predictor import DEFAULT_BATCH_BYTES, check_batch_bytes
from .shipping import ShippedModel, ship
from .source import ScoredTable, SourceColumns, open_scored_table
from .tasks import arrow_rows, bounded_arrow_batches, spread
from .work import Work, split_work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

# Each is lost to another scoring job of the same model and table that was faster.
_ATTEMPTS = 3


@dataclass(frozen=True)
class ScoreResult:
    """What a scoring run did. The rows of the version (and split) are `scored` + `skipped`.

    Attributes:
        version: A version of the predictions table that holds the rows; None when nothing was ever written.
        scored: Rows that the model was run on, and that this run has added.
        skipped: Rows that it was not run on, because it has scored them before.
        errors: How many of `scored` have an error instead of a prediction.
        carried: How many of `skipped` were copied from another version of the table that has the same image.
        table: Location of the image table.
        table_version: The version that was scored.
        predictions: Location of the predictions table.
        digest: Digest of the checkpoint.
        model_uri: The model as the caller named it.
        batch_id: Marks the rows of this run in the predictions table; None when it added none.
        seconds: From the call to this result.
    """

    version: int | None
    scored: int
    skipped: int
    errors: int
    carried: int
    table: str
    table_version: int
    predictions: str
    digest: str
    model_uri: str
    batch_id: str | None
    seconds: float


def score(
    spark: SparkSession,
    model: str | Path,
    table: str | Path,
    version: int | str | datetime | None = None,
    predictions: str | Path | None = None,
    *,
    split: str | None = None,
    tracking_uri: str | None = None,
    batch_bytes: int = DEFAULT_BATCH_BYTES,
    custom_objects: Mapping[str, Any] | None = None,
    path_column: str = "path",
    image_column: str = "image",
    label_column: str = "label",
    storage_options: Mapping[str, str] | None = None,
) -> ScoreResult:
    """Predicts the class of every image of one version of a table, and appends the predictions as one commit.

    A second call does only what is new. A row is skipped if this model (by its checkpoint's digest) has scored it in
    this version of the table already; if it has scored the same image (path and content) in another version, its
    prediction is copied, with the time at which it was made. So each version's predictions are complete, and the model
    runs once per image. A row that cannot be scored gets an `error`; it is not tried again in the same version.

    Killed at any moment, it leaves either the whole commit or nothing visible; call it again. Two calls for the same
    model and table that run at once never add a row twice: the later one starts over, and finds less to do.

    Args:
        spark: A session with Delta.
        model: `runs:/<run id>`, `models:/<name>@<alias>`, `experiment:<id>` or a checkpoint's path (`resolve_model`).
        table: The image table: path, URI or catalog name. Any Delta table with a path and an image will do; the columns
            `format`, `height`, `width`, `label`, `label_name`, `split` and `content_hash` are used if they are there.
        version: Number, timestamp, pin's name, or None or "latest".
        predictions: The predictions table: path, URI or catalog name; made when it is missing.
        split: Score only this split; None scores all rows.
        tracking_uri: MLflow tracking URI.
        batch_bytes: Most bytes of one batch of float32 input, and about as much stored images per Arrow batch.
        custom_objects: The user's own layers by name, when the model has any.
        path_column: Column that names a row.
        image_column: Column with the stored image, binary.
        label_column: Column with the number of the true class, if there is one.
        storage_options: Access to an object store for reading Delta logs, under delta-rs' names.

    Raises:
        ModelNotFoundError: If `model` leads to no checkpoint.
        CheckpointError: If the checkpoint is damaged, changed, or of a kind that is refused.
        ModelMismatchError: If the model cannot be run on images of its own input size.
        NotADeltaTableError, VersionNotFoundError, NotAnImageTableError: If the table is not there or not fit.
        PredictionsSchemaError: If the predictions table has other columns.
        TableConflictError: If other scoring jobs of the same model and table kept being faster.
    """
    started = time.perf_counter()
    check_batch_bytes(batch_bytes)
    require_delta(spark)
    target = _predictions_location(spark, predictions, table)
    reference = resolve_model(model, tracking_uri)
    columns = SourceColumns(path_column, image_column, label_column)
    source = open_scored_table(spark, table, version, split, columns=columns, storage_options=storage_options)
    results = PredictionsTable(
        spark, target, digest=reference.digest, table=source.location, storage_options=storage_options
    )
    run = _ScoringRun(spark, reference, source, results, batch_bytes, custom_objects)
    with source.protected(reference.digest), typed_failures(source.name):
        outcome = run.until_done()
    if outcome.version is not None and reference.tracking_uri is not None and reference.run_id is not None:
        scored_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        scoring = Scoring(results.location, outcome.version, source.location, source.version, scored_at)
        record_scoring(reference.tracking_uri, reference.run_id, scoring)
    return ScoreResult(
        version=outcome.version,
        scored=outcome.scored,
        skipped=outcome.total - outcome.scored,
        errors=outcome.errors,
        carried=outcome.carried,
        table=source.location,
        table_version=source.version,
        predictions=results.location,
        digest=reference.digest,
        model_uri=reference.uri,
        batch_id=outcome.batch_id,
        seconds=round(time.perf_counter() - started, 3),
    )


def _predictions_location(spark: SparkSession, predictions: str | Path | None, table: str | Path) -> str:
    if predictions is None:
        raise InvalidArgumentError(
            "predictions is missing: give the table that takes the predictions, by path, URI or catalog name"
        )
    target = absolute(predictions)
    if target.rstrip("/") == absolute(table).rstrip("/"):
        raise InvalidArgumentError(f"predictions and table are both {target}; predictions go into a table of their own")
    return target


@dataclass(frozen=True)
class _Outcome:
    version: int | None
    total: int
    scored: int = 0
    errors: int = 0
    carried: int = 0
    batch_id: str | None = None


@dataclass(frozen=True)
class _ScoringRun:
    """One call of `score`, with everything resolved."""

    spark: SparkSession
    model: ModelRef
    source: ScoredTable
    results: PredictionsTable
    batch_bytes: int
    custom_objects: Mapping[str, Any] | None

    def until_done(self) -> _Outcome:
        """Tries until this run's rows are in the table, or there is nothing left to do."""
        for _ in range(_ATTEMPTS):
            state = self.results.state()
            with split_work(self.source, self.results, state, self.model.digest) as work:
                if work.todo_rows + work.carried_rows == 0:
                    return _Outcome(state.version, work.total_rows)
                batch_id = uuid.uuid4().hex
                written = self._append(work, state, batch_id)
            if written is not None:
                return _Outcome(
                    written.version,
                    work.total_rows,
                    scored=written.rows - work.carried_rows,
                    errors=written.errors,
                    carried=work.carried_rows,
                    batch_id=batch_id,
                )
            logger.warning(
                "another job has scored %s with the same model meanwhile; looking for what is left", self.source.name
            )
        raise TableConflictError(
            f"{self.results.location}: other jobs that score {self.source.name} with model {self.model.digest[:12]} "
            f"were faster {_ATTEMPTS} times; call score again when they have ended"
        )

    def _append(self, work: Work, state: PredictionsState, batch_id: str) -> Written | None:
        """Runs the model and writes; None when another writer was faster."""
        from pyspark.sql import functions

        parts = [part for part in (self._predicted(work) if work.todo_rows else None, work.carried) if part is not None]
        rows = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
        rows = rows.withColumns(
            {
                "checkpoint_digest": functions.lit(self.model.digest),
                "table": functions.lit(self.source.location),
                "version": functions.lit(self.source.version).cast("bigint"),
                "batch_id": functions.lit(batch_id),
            }
        )
        try:
            with (
                conflicts_named(self.results.location),
                bounded_arrow_batches(self.spark, arrow_rows(self.batch_bytes, self.source.mean_row_bytes)),
            ):
                self.results.append(rows, state)
        except TableConflictError:
            return None
        return self.results.written(batch_id)

    def _predicted(self, work: Work) -> DataFrame:
        from pyspark.sql import functions

        shipped = ship(self.spark, self.model, batch_bytes=self.batch_bytes, custom_objects=self.custom_objects)
        images = spread(
            work.todo,
            row_count=work.todo_rows,
            input_shape=self.model.input_shape,
            slots=self.spark.sparkContext.defaultParallelism,
            row_groups=self.source.row_groups,
        )
        return images.mapInArrow(_task(shipped), f"{PASSED_DDL}, {PREDICTION_DDL}").withColumns(
            {
                "model_uri": functions.lit(self.model.uri),
                "scored_at": functions.lit(datetime.now(timezone.utc)),
            }
        )


def _task(shipped: ShippedModel) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from predict_arrow(shipped.predictor(), batches)

    return run
