"""Scores one version of an image table into a predictions table: only new rows, each once."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from ...errors import NotAnImageTableError
from ...etl.model import schema
from ...extras import require
from ...options import named_options, whole_number
from ...results import ReadableResult
from ...spark.session import SessionSource, opened, require_delta
from ...table import Table
from ...tracking.scorings import Scoring, record_scoring
from ...training.checkpoints.references import ModelRef, resolve_model
from ...training.tasks.registry import task_of
from ..model.failures import typed_failures
from ..model.onnx_engine import check_engine
from ..model.predictor import DEFAULT_BATCH_BYTES
from ..model.user_code import user_code
from .mismatch import check_fit
from .predictions import PredictionsTable, predictions_location
from .run import ScoringRun
from .source import ScoredTable, SourceColumns, check_by_log, open_scored_table

if TYPE_CHECKING:
    from typing_extensions import Unpack

logger = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class ScoreResult(ReadableResult):
    """The result of a scoring run. The rows of the version (and split) are `scored` + `skipped`.

    Attributes:
        version: A version of the predictions table that holds the rows; None when nothing was ever written.
        scored: Rows that this run has predicted and added.
        skipped: Rows that were not predicted, because the model has scored them before.
        errors: How many of `scored` have an error instead of a prediction.
        carried: How many of `skipped` were copied from another version of the table with the same image.
        table: Location of the image table.
        table_version: The version that was scored.
        predictions: Location of the predictions table.
        digest: Digest of the checkpoint.
        model_uri: The model as the caller named it.
        batch_id: Marks the rows of this run in the predictions table; None when it added none.
        seconds: From the call to this result.
        commits: How many commits have added the rows of this run.
        engine: What ran the model: `frozen graph`, `ONNX Runtime`, `PyTorch`, or Keras with the reason; None if no row
            was predicted.
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
    commits: int = 0
    engine: str | None = None


@named_options
def score(
    spark: SessionSource,
    model: str | Path,
    table: str | Path,
    predictions: str | Path | None = None,
    version: int | str | datetime | None = None,
    *,
    split: str | None = None,
    strict: bool = False,
    rows_per_commit: int | None = None,
    tracking_uri: str | None = None,
    batch_bytes: int = DEFAULT_BATCH_BYTES,
    custom_objects: Mapping[str, Any] | None = None,
    engine: str | None = None,
    path_column: str = "path",
    image_column: str = "image",
    label_column: str = "label",
    key: str = "content_hash",
    storage_options: Mapping[str, str] | None = None,
) -> ScoreResult:
    """Predicts for every image of one version of a table, and appends the predictions part by part.

    A part is some data files, about half a minute of work, and one commit. A killed job keeps the parts that it has
    committed; the next call scores the rest. Concurrent calls for the same model and table share the parts and never
    add a row twice.

    A second call scores only new rows. A row is skipped if this model (by its checkpoint's digest) has already scored
    it in this version of the table. If it has scored the same image (path and content) in another version, the
    prediction is copied together with its time. So each version's predictions are complete, and the model runs once per
    image.

    A row that cannot be scored gets an `error`. It is not tried again in the same version, unless the machine or
    the model may have caused the error (`model_raised`, `out_of_memory`): then the next call replaces it. Failures that
    no row has caused fail the call.

    Args:
        spark: A session with Delta, or a function that opens one; it is called after model and table are found.
        model: `runs:/<run id>`, `models:/<name>@<alias>`, `experiment:<id>` or a checkpoint's path (`resolve_model`).
        table: The image table: path, URI or catalog name, also as `table@version`. Any Delta table with a path
            and an image works; the columns `format`, `height`, `width`, `label`, `label_name`, `split` and
            `content_hash` are used if they exist.
        predictions: The predictions table: path, URI or catalog name; created if it does not exist.
        version: Number, timestamp, pin's name, or None or "latest".
        split: Only this split; None, the default, takes all rows, because predictions are wanted for each. `evaluate`
            and `promote` take `test` by default, because metrics on rows that the model was trained on are too good.
        strict: Refuse a model whose class names, image size or table differ from this table's, instead of warning.
        rows_per_commit: Most rows of a part, in whole data files, at least one; None adapts it to the time that parts
            take.
        tracking_uri: MLflow tracking URI.
        batch_bytes: Most bytes of one batch of float32 input, and about as much stored images per Arrow batch.
        custom_objects: Classes and functions by name that the model needs and neither Keras nor its run's recorded code
            has.
        engine: "onnxruntime" converts a Keras model on the driver (extra `onnxruntime`), and its workers need no
            TensorFlow; None runs a model in its own framework.
        path_column: Column that names a row.
        image_column: Column with the stored image, binary.
        label_column: Column with the number of the true class, or with names that the table's property
            `lakelens.labels` numbers, if there is one.
        key: Column that changes when the image changes, such as a digest or modification time, for tables without
            `content_hash`; without it, each version is scored in full. Use the same key in every call for a
            predictions table.
        storage_options: Access to an object store for reading Delta logs and images, on the executors too, under
            delta-rs' names.

    Raises:
        ModelNotFoundError: If `model` has no checkpoint.
        CheckpointError: If the checkpoint is damaged, changed, or of a kind that is refused.
        ModelMismatchError: If the model cannot be run on images of its input size, or needs a class that neither Keras,
            its run's code nor `custom_objects` has, or if `engine` cannot run it with equal outputs; if `strict`, also
            if it does not fit the table.
        MissingDependencyError: If a package that `engine` needs is not installed.
        NotADeltaTableError, VersionNotFoundError, NotAnImageTableError: If the table does not exist or is not suitable.
        PredictionsSchemaError: If the predictions table has other columns.
        TableConflictError: If other scoring jobs of the same model and table were faster several times.
        ScoringFailedError: If the machine or the model fails, not a row.

    Examples:
        >>> result = lakelens.score(spark, f"runs:/{run.run_id}", "tables/photos@0", "tables/predictions")
        >>> result.scored, result.errors
        (60, 0)
    """
    started = time.perf_counter()
    run = open_run(
        "lakelens.score",
        spark,
        model,
        table,
        predictions,
        version,
        split=split,
        strict=strict,
        rows_per_commit=rows_per_commit,
        tracking_uri=tracking_uri,
        batch_bytes=batch_bytes,
        custom_objects=custom_objects,
        engine=engine,
        path_column=path_column,
        image_column=image_column,
        label_column=label_column,
        key=key,
        storage_options=storage_options,
    )
    if not run.source.has_key:
        logger.warning(
            "%s has no column %r, so images shared with other versions cannot be found, and each version is scored in "
            "full. To score new images only, name a column that changes when the image changes: key=... (--key)",
            run.source.name,
            key,
        )
    complete(run)
    return result_of(run, started)


class ScoreOptions(TypedDict, total=False):
    """The options that `score` and `score_stream` share; `score` describes them."""

    split: str | None
    strict: bool
    rows_per_commit: int | None
    tracking_uri: str | None
    batch_bytes: int
    custom_objects: Mapping[str, Any] | None
    engine: str | None
    path_column: str
    image_column: str
    label_column: str
    key: str
    storage_options: Mapping[str, str] | None


def open_run(
    call: str,
    spark: SessionSource,
    model: str | Path,
    table: str | Path,
    predictions: str | Path | None,
    version: int | str | datetime | None = None,
    **options: Unpack[ScoreOptions],
) -> ScoringRun:
    """Resolves and checks what `score` takes, for the public function `call`; opens the session last."""
    require(call, "pyspark")
    batch_bytes, rows_per_commit = options.get("batch_bytes", DEFAULT_BATCH_BYTES), options.get("rows_per_commit")
    batch_bytes = whole_number("batch_bytes", batch_bytes, least=1)
    if rows_per_commit is not None:
        rows_per_commit = whole_number("rows_per_commit", rows_per_commit, least=1)
    columns = SourceColumns(
        options.get("path_column", schema.PATH),
        options.get("image_column", schema.IMAGE),
        options.get("label_column", schema.LABEL),
        options.get("key", schema.CONTENT_HASH),
    )
    split = options.get("split")
    named = Table.of(table, version, options.get("storage_options"))
    reference = resolve_model(model, options.get("tracking_uri"))
    engine = options.get("engine")
    check_engine(call, engine, reference)
    task = task_of(reference.checkpoint)
    target = predictions_location(predictions, named, task)
    snapshot = check_by_log(named, split, columns)
    code = user_code(reference, options.get("custom_objects"))
    spark = opened(spark)
    require_delta(spark)
    source = open_scored_table(spark, named, split, columns=columns, snapshot=snapshot)
    check_model(reference, source, options.get("strict", False))
    results = PredictionsTable(
        spark,
        target,
        task=task,
        digest=reference.digest,
        table=source.location,
        storage_options=named.storage_options,
    )
    return ScoringRun(
        spark, reference, source, results, batch_bytes, code, engine=engine, rows_per_commit=rows_per_commit
    )


def complete(run: ScoringRun) -> None:
    """Scores the rows that remain, while their version is protected, and records that on the model's run."""
    source, model = run.source, run.model
    with source.protected(model.digest, stays=run.before is None) as run.alive, typed_failures(source.name):
        tally = run.until_done()
    if tally.version is not None and model.tracking_uri is not None and model.run_id is not None:
        scored_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        scoring = Scoring(run.results.location, tally.version, source.location, source.version, scored_at)
        record_scoring(model.tracking_uri, model.run_id, scoring)


def result_of(run: ScoringRun, started: float) -> ScoreResult:
    """Makes the result of what a run has done since `started`, by `time.perf_counter`."""
    tally = run.tally
    return ScoreResult(
        version=tally.version,
        scored=tally.scored,
        skipped=max(0, tally.total - tally.scored),
        errors=tally.errors,
        carried=tally.carried,
        table=run.source.location,
        table_version=run.source.version,
        predictions=run.results.location,
        digest=run.model.digest,
        model_uri=run.model.uri,
        batch_id=run.batch_id if tally.commits else None,
        seconds=round(time.perf_counter() - started, 3),
        commits=tally.commits,
        engine="; ".join(sorted(tally.engines)) or None,
    )


def check_model(model: ModelRef, source: ScoredTable, strict: bool) -> None:
    """Compares a model with the table to score; see `check_fit`."""
    labels: dict[str, int] = {}
    with suppress(NotAnImageTableError):  # a damaged property of the table has no names to compare
        labels = source.labels()
    trained_on = model.metadata.get("table")
    # Training resized the images of the model's own table, so their size does not matter.
    is_own = trained_on == source.location
    check_fit(
        model=model.uri,
        class_names=model.class_names,
        model_size=model.input_shape[:2],
        trained_on=None if trained_on is None else str(trained_on),
        table=source.location,
        labels=labels,
        table_size=None if is_own else source.image_size(),
        strict=strict,
    )
