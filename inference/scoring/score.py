"""Scores one version of an image table, or each new one, into a predictions table: only new rows, each once.

Watching is not a query of Structured Streaming: the checkpoint of one would be a second memory next to the predictions
table, and Delta's stream ends at the first change of the table's schema.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ...errors import InvalidArgumentError, ScoringPaused
from ...extras import require
from ...job_keys import Job
from ...log.opening import open_table
from ...options import fraction, named_options, whole_number
from ...pausing import pausing
from ...results import ReadableResult
from ...spark.port import keep_session
from ...spark.session import SessionSource, opened, require_delta
from ...table import Table
from ...table_jobs import TableJob
from ...training.checkpoints.references import resolve_model
from ...training.tasks.detection import DETECTIONS, LEAST_SCORE
from ...training.tasks.registry import task_of
from ..model.onnx_engine import check_engine
from ..model.user_code import user_code
from .options import ModelOptions, ModelSettings
from .predictions import PredictionsTable, predictions_location
from .run import ScoringRun, Tally
from .source import ScoredTable, check_by_log, open_scored_table

if TYPE_CHECKING:
    from typing_extensions import Unpack

# A signal's handler cannot wake the thread that it runs in: a sleep of this length ends after it.
_NAP_S = 0.5


def watch(run: ScoringRun, watch_s: float, strict: bool, report: Callable[[ScoringRun, float], None]) -> NoReturn:
    """Completes a run and then one for each version that comes; `report` gets each with its start."""
    signals: list[int] = []

    def pause() -> None:
        if signals:
            name = signal.Signals(signals[0]).name
            raise ScoringPaused(
                f"{run.source.name}: {name} has ended the watch after the part that it was in; the next call scores "
                "the remaining rows",
                signal_number=signals[0],
            )

    with pausing(signals.append, "ending after this part"):
        while True:
            started = time.perf_counter()
            # The uses of all versions that come would keep all files of the table from VACUUM.
            run.complete(stays=False, before_part=pause)
            report(run, started)
            pause()
            while not _is_outdated(run.source):
                _sleep(watch_s, pause)
                keep_session(run.spark)
            run = _of_latest(run)
            run.check(strict)


def _is_outdated(source: ScoredTable) -> bool:
    """Returns whether the log has another version than this one, or another table has taken its place."""
    latest = open_table(source.snapshot.table.at(None))
    return (latest.metadata().id, latest.version()) != (source.snapshot.table_id, source.version)


def _of_latest(run: ScoringRun) -> ScoringRun:
    source = run.source
    latest = open_scored_table(run.spark, source.snapshot.table.at(None), source.split, columns=source.columns)
    return replace(run, source=latest, tally=Tally())


def _sleep(seconds: float, pause: Callable[[], None]) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _NAP_S))
        pause()


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
        seconds: From the call to this result; in a watch, of this version.
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
    min_score: float | None = None,
    watch_s: float | None = None,
    on_pass: Callable[[ScoreResult], None] | None = None,
    job: str | Job | None = None,
    **options: Unpack[ModelOptions],
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
        min_score: Of a detector, keep only boxes with at least this score, 0.05 to 1; None keeps all. A page of
            `evaluate` names the score with the highest F1. A predictions table has one `min_score`.
        watch_s: Seconds between two looks at the table. The call scores the latest version, then looks for a new one,
            scores it like a separate call, and so on; it never returns. A look reads the log and starts no Spark job.
            The model is resolved once. Versions between two looks are skipped, and `ImageTable.vacuum` does not keep
            the scored ones. The first Ctrl-C or SIGTERM ends the call after its part, the second at once. An error ends
            it too: the next call scores the remaining rows. None scores once.
        on_pass: Called with the result of each version that a watch has scored.
        job: The key of a job, such as the id of a scheduler's task, or a `lakelens.Job`. A call that repeats key and
            arguments of one that has finished returns its result. One that has not finished is repeated: with
            `version` it scores the rest of the same rows.
        **options: What runs the model, and how model and table are reached; `evaluate` takes them too, and `promote`
            those from `engine` to `key`.

            engine: "onnxruntime" converts a Keras model on the driver (extra `onnxruntime`), and its workers need no
                TensorFlow; None, the default, runs a model in its own framework.
            path_column: Column that names a row; `path` by default.
            image_column: Column with the stored image, binary; `image` by default.
            label_column: Column with the number of the true class, or with names that the table's property
                `lakelens.labels` numbers, if there is one; `label` by default.
            key: Column that changes when the image changes, such as a digest or modification time, for tables without
                `content_hash`, which is the default; without it, each version is scored in full. Use the same key in
                every call for a predictions table.
            tracking_uri: MLflow tracking URI.
            batch_bytes: Most bytes of one batch of float32 input, and about as much stored images per Arrow batch; 32
                MiB by default.
            custom_objects: Classes and functions by name that the model needs and neither Keras nor its run's recorded
                code has.
            storage_options: Access to an object store for reading Delta logs and images, on the executors too, under
                delta-rs' names.

    Raises:
        ScoringPaused: If `watch_s` was given and Ctrl-C or SIGTERM has ended the call.
        ModelNotFoundError: If `model` has no checkpoint.
        CheckpointError: If the checkpoint is damaged, changed, or of a kind that is refused.
        ModelMismatchError: If the model cannot be run on images of its input size, or needs a class that neither Keras,
            its run's code nor `custom_objects` has, or if `engine` cannot run it with equal outputs; if `strict`, also
            if it does not fit the table.
        MissingDependencyError: If a package that `engine` needs is not installed.
        NotADeltaTableError, VersionNotFoundError, NotAnImageTableError: If the table does not exist or is not suitable.
        PredictionsSchemaError: If the predictions table has other columns or another `min_score`.
        TableConflictError: If other scoring jobs of the same model and table were faster several times.
        ScoringFailedError: If the machine or the model fails, not a row.

    Examples:
        >>> result = lakelens.score(spark, f"runs:/{run.run_id}", "tables/photos@0", "tables/predictions")
        >>> result.scored, result.errors
        (60, 0)
    """
    started = time.perf_counter()
    require("lakelens.score", "pyspark")
    settings = ModelSettings(**options)
    columns, engine = settings.columns, settings.engine
    if rows_per_commit is not None:
        rows_per_commit = whole_number("rows_per_commit", rows_per_commit, least=1)
    named = Table.of(table, version, settings.storage_options)
    _check_watch(watch_s, on_pass, named)
    keyed = Job.of(job)
    if keyed is not None and watch_s is not None:
        raise InvalidArgumentError("job (--job) is not for a watch, which resumes where it stopped; leave it out")
    reference = resolve_model(model, settings.tracking_uri)
    check_engine("lakelens.score", engine, reference)
    task = task_of(reference.checkpoint)
    if min_score is not None:
        min_score = fraction("min_score", min_score, LEAST_SCORE)
        if DETECTIONS not in task.prediction_columns:
            raise InvalidArgumentError(
                f"min_score is for boxes; {reference.uri} is a model of task {task.name}, which has none: leave it out"
            )
    target = predictions_location(predictions, named, task, min_score)
    snapshot = check_by_log(named, split, columns)
    code = user_code(reference, settings.custom_objects)
    spark = opened(spark)
    require_delta(spark)
    source = open_scored_table(spark, named, split, columns=columns, snapshot=snapshot)
    results = PredictionsTable(
        spark,
        target,
        task=task,
        digest=reference.digest,
        table=source.location,
        storage_options=named.storage_options,
        min_score=min_score,
    )
    arguments: dict[str, object] = {"command": "score", "model": str(model), "table": str(named), "split": split}
    arguments |= {**asdict(columns), "strict": strict, "min_score": min_score, "engine": engine}
    if keyed is not None and results.exists():
        found = TableJob(results.table, keyed, arguments).result()
        if found is not None:
            return ScoreResult(**found)
    run = ScoringRun(
        spark, reference, source, results, settings.batch_bytes, code, engine=engine, rows_per_commit=rows_per_commit
    )
    run.check(strict)
    if watch_s is not None:
        tell = on_pass or (lambda _: None)
        watch(run, watch_s, strict, lambda done, since: tell(_result_of(done, since)))
    run.complete()
    result = _result_of(run, started)
    if keyed is not None and results.exists():
        TableJob(results.table, keyed, arguments).finish(asdict(result))
    return result


def _check_watch(watch_s: float | None, on_pass: object, table: Table) -> None:
    if watch_s is None:
        if on_pass is not None:
            raise InvalidArgumentError("on_pass is called while a table is watched: give watch_s too, or leave it out")
        return
    is_number = isinstance(watch_s, (int, float)) and not isinstance(watch_s, bool)
    if not is_number or not 0 < watch_s < float("inf"):
        raise InvalidArgumentError(f"watch_s={watch_s!r}: give seconds above 0 (--watch), or None to score once")
    if table.version is not None:
        raise InvalidArgumentError(
            f"{table} names a version, and a watch (watch_s=..., --watch) scores each one that comes; name the table "
            "alone, or score the version once"
        )


def _result_of(run: ScoringRun, started: float) -> ScoreResult:
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
