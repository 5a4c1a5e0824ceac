"""Evaluates a model on one version of an image table, alone or against another model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import InvalidArgumentError, ModelMismatchError
from ...etl.spark.catalog import read_table
from ...extras import require
from ...locations import require_writable
from ...options import named_options
from ...progress import image_progress
from ...spark.port import counter, kept, parallelism
from ...spark.session import SessionSource, opened, require_delta
from ...table import Table
from ...training.checkpoints.references import ModelRef, resolve_model
from ...training.tasks.classification import Classification
from ...training.tasks.detection import Detection
from ...training.tasks.registry import task_of
from ..model.failures import typed_failures
from ..model.onnx_engine import check_engine
from ..model.shipping import prediction_task, ship
from ..model.user_code import UserCode, user_code
from ..scoring.mismatch import check_model
from ..scoring.options import ModelOptions, ModelSettings
from ..scoring.predictions import PASSED_DDL, predictions_location
from ..scoring.remaining import in_version, same_row
from ..scoring.score import score
from ..scoring.source import check_by_log, open_scored_table
from .classification import ClassificationEvaluator
from .detection import DetectionEvaluator
from .evaluator import Answered, Evaluator, require_slices
from .report import PAGE, record_evaluation, write_report
from .result import EvaluationResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from typing_extensions import Unpack

# Not all rows, as `score` takes: metrics on rows that a model was trained on are too good.
DEFAULT_SPLIT = "test"
_EVALUATORS: Mapping[str, type[Evaluator]] = {
    Classification.name: ClassificationEvaluator,
    Detection.name: DetectionEvaluator,
}


@named_options
def evaluate(
    spark: SessionSource,
    model: str | Path,
    table: str | Path,
    version: int | str | datetime | None = None,
    *,
    split: str | None = DEFAULT_SPLIT,
    compare: str | Path | None = None,
    slices: Sequence[str] = (),
    predictions: str | Path | None = None,
    out: str | Path | None = None,
    record: bool = True,
    **options: Unpack[ModelOptions],
) -> EvaluationResult:
    """Compares a model's answers with the labels of one table version.

    The model's task decides the metrics. For classification: accuracy, precision, recall and F1 per class, confusion
    matrix, top-k, calibration. `compare` adds the answers that changed between the two models, and the class that
    gained most. The result is an HTML page with PNG files, in `out` and in the run that trained the model.

    Args:
        spark: A session with Delta, or a function that opens one; it is called after models and table are found.
        model: `runs:/<run id>`, `models:/<name>@<alias>`, `experiment:<id>` or a checkpoint's path (`resolve_model`).
        table: The image table: path, URI or catalog name; `table@version` names the version too.
        version: Number, timestamp, pin's name, or None or "latest".
        split: Only this split; None takes all rows. The default is `test`, because metrics on rows that the model was
            trained on are too good; `score` predicts all rows by default, because predictions are wanted for each.
        compare: The earlier model, in the same forms.
        slices: Columns of the table; the metrics are computed separately for each value of them.
        predictions: A predictions table for the answers: rows that the models have scored before are not scored
            again. Without it the models run on all rows, and the answers are not stored.
        out: Folder for the page and its PNG files; None writes none.
        record: Whether page, PNG files and metrics go into the model's MLflow run, if the model was found through one.
        **options: As for `score`, for all models: `engine`, `path_column`, `image_column`, `label_column`, `key`,
            `tracking_uri`, `batch_bytes`, `custom_objects`, `storage_options`.

    Raises:
        ModelNotFoundError: If a model has no checkpoint.
        NotADeltaTableError, VersionNotFoundError, NotAnImageTableError: If the table does not exist or is not suitable.
        InvalidArgumentError: If the split or a slice column does not exist, no row has a label, `out` cannot be
            written, or `predictions` were scored with another key.
        PredictionsSchemaError: If a model numbers its classes differently from the table.
        ModelMismatchError: If a model needs a class that neither Keras, its run's code nor `custom_objects` has, or the
            two models have different tasks, or `engine` cannot run one with equal outputs.
        MissingDependencyError: If matplotlib or a package that `engine` needs is not installed.
        TrackingError: If the store does not take the result.

    Examples:
        >>> result = lakelens.evaluate(
        ...     spark, f"runs:/{run.run_id}", "tables/photos@0", split="train", predictions="tables/predictions"
        ... )
        >>> 0 <= result.evaluation.scores["accuracy"] <= 1
        True
    """
    require("lakelens.evaluate", "pyspark", "matplotlib")
    settings = ModelSettings(**options)
    named, columns = Table.of(table, version, settings.storage_options), settings.columns
    asked = [resolve_model(one, settings.tracking_uri) for one in (model, compare) if one is not None]
    check_engine("lakelens.evaluate", settings.engine, *asked)
    kind = evaluator_of(*asked)
    snapshot = check_by_log(named, split, columns)
    if snapshot is not None:
        require_slices(f"{snapshot.location}@{snapshot.version}", snapshot.schema, slices)
    if predictions is not None:
        predictions_location(predictions, named, task_of(asked[0].checkpoint))
    if out is not None:
        require_writable("out", Path(out))
    coded = [(one, user_code(one, settings.custom_objects)) for one in asked]
    spark = opened(spark)
    require_delta(spark)
    source = open_scored_table(spark, named, split, columns=columns, snapshot=snapshot)
    evaluator = kind(source, slices)
    with ExitStack() as stack, typed_failures(source.name):
        answered = [
            Answered(one, stack.enter_context(_answers(evaluator, one, code, predictions, settings)))
            for one, code in coded
        ]
        result, files = evaluator.report(answered[0], answered[1] if compare is not None else None)
    if out is not None:
        write_report(Path(out), files)
        result = replace(result, page=str(Path(out).absolute() / PAGE))
    if record:
        result = replace(result, artifacts=record_evaluation(asked[0], result, files, *asked[1:]))
    return result


def evaluator_of(model: ModelRef, before: ModelRef | None = None) -> type[Evaluator]:
    """Finds the evaluator of a model, and of the model that it is compared with."""
    task = task_of(model.checkpoint).name
    other = task if before is None else task_of(before.checkpoint).name
    if before is not None and other != task:
        raise ModelMismatchError(
            f"{model.uri} is a model of task {task} and {before.uri} one of {other}; compare models of one task"
        )
    return _EVALUATORS[task]


@contextmanager
def _answers(
    evaluator: Evaluator, model: ModelRef, code: UserCode, predictions: str | Path | None, settings: ModelSettings
) -> Iterator[DataFrame]:
    source = evaluator.source
    if predictions is None:
        check_model(model, source, strict=False)
        with _predicted_now(model, evaluator, settings.batch_bytes, code, settings.engine) as rows:
            yield rows
        return
    where = (source.location, predictions, source.version)
    scored = score(source.spark, model.uri, *where, split=source.split, **vars(settings))
    if scored.version is None:
        raise InvalidArgumentError(f"{source.name}, split {source.split}: no row to evaluate")
    with kept(_scored_before(scored.predictions, scored.version, model, evaluator)) as rows:
        yield rows


@contextmanager
def _predicted_now(
    model: ModelRef, evaluator: Evaluator, batch_bytes: int, code: UserCode, engine: str | None
) -> Iterator[DataFrame]:
    """Runs a model over a table version; the answers stay with the executors until the body ends."""
    source, columns = evaluator.source, evaluator.columns()
    spark = source.spark
    row_count = source.row_count()
    shipped = ship(spark, model, batch_bytes=batch_bytes, code=code, engine=engine)
    ddl = ", ".join([PASSED_DDL, *(f"{name} {kind}" for name, (kind, _) in columns.items()), shipped.ddl])
    done = counter(spark)
    with ExitStack() as stack:
        with image_progress(f"evaluate {source.name}", row_count, lambda: (done.value, 0)) as count_file:
            predicted = source.image_files(batch_bytes).predicted(
                source.rows([made.alias(name) for name, (_, made) in columns.items()]),
                prediction_task(shipped, count_file, done),
                ddl,
                count=row_count,
                image_pixels=model.input_shape[0] * model.input_shape[1],
                slots=parallelism(spark),
            )
            rows = stack.enter_context(kept(evaluator.kept(predicted)))
            rows.count()
        yield rows


def _scored_before(predictions: str, version: int, model: ModelRef, evaluator: Evaluator) -> DataFrame:
    """Reads a model's answers from a predictions table that holds them."""
    source, columns = evaluator.source, evaluator.columns()
    rows = read_table(source.spark, predictions, version)
    rows = rows.where(in_version(source, model.digest))
    # An earlier table at this location may have had other images under this version's number.
    rows = rows.alias("rows").join(source.rows().alias("keys"), same_row("rows", "keys"), "left_semi")
    if columns:
        values = source.rows([made.alias(name) for name, (_, made) in columns.items()]).select("path", *columns)
        rows = rows.join(values, "path", "left")
    return evaluator.kept(rows)
