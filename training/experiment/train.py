"""Trains one model on one pinned version of an image table, on one or many ranks, as one MLflow run."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import (
    CheckpointError,
    EmptyFeedError,
    InvalidArgumentError,
    NotADeltaTableError,
    NotAnImageTableError,
    TrackingError,
    TrainingPaused,
)
from ...etl.pins import pins
from ...locations import absolute, absolute_path, has_scheme, is_table_name
from ...tracking.run_records import RunRecord
from ...tracking.run_writer import RunWriter
from ...tracking.runs import (
    CHECKPOINT_ARTIFACT,
    DIGEST_TAG,
    ENTRYPOINT_TAG,
    METRIC_TAG,
    TABLE_TAG,
    VERSION_TAG,
    RunReference,
    TableVersion,
    log_table,
    resolve_tracking_uri,
    tracked_run,
)
from ..checkpoints.checkpoint import Checkpoint, open_checkpoint, sweep
from ..feed.feed import DeltaFeed
from ..feed.image_sizes import size_of_all_images
from ..record.code_record import record_code
from ..record.mlflow_model import mlflow_model_of
from ..runner.runner import HorovodRunner
from ..segments.checks import PROBE_FILE
from ..segments.job import TrainingJob
from ..segments.segment import SegmentOutcome
from ..trials.entrypoint import DEFAULT_ENTRYPOINT, EntryPoint
from ..trials.metrics import Goal
from ..trials.trial import Trial
from .trial_driver import run_segment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


DEFAULT_CHECKPOINT_DIR = "lakelens-checkpoints"


@dataclass(frozen=True)
class TrainResult:
    """What a training has left behind.

    Attributes:
        run_id: The MLflow run.
        experiment_id: Its experiment.
        tracking_uri: Its store.
        table: Path or URI of the table.
        version: The version that was read, also when a time, a pin or the latest was asked for.
        checkpoint: Folder of the best checkpoint.
        digest: Its digest.
        metrics: Metrics of its epoch, over all ranks.
        best_epoch: Its epoch, from 1.
        epochs: Epochs that were trained.
        ranks: Number of ranks.
        seconds: From the call to this result.
    """

    run_id: str
    experiment_id: str
    tracking_uri: str
    table: str
    version: int
    checkpoint: str
    digest: str
    metrics: dict[str, float]
    best_epoch: int
    epochs: int
    ranks: int
    seconds: float


def train(
    table: str | Path,
    *,
    version: int | str | datetime | None = None,
    entrypoint: str | type[Trial] = DEFAULT_ENTRYPOINT,
    np: int = -1,
    epochs: int = 10,
    batch_size: int = 64,
    hyperparameters: Mapping[str, Any] | None = None,
    seed: int = 0,
    train_split: str | None = "train",
    validation_split: str | None = "validation",
    metric: str | None = None,
    mode: str | None = None,
    patience: int | None = None,
    image_size: int | Sequence[int] | None = None,
    class_names: Sequence[str] | None = None,
    tracking_uri: str | None = None,
    experiment_name: str = "lakelens",
    run_name: str | None = None,
    checkpoint_dir: str | Path | None = None,
    max_restarts: int = 0,
    stall_timeout_s: float = 60.0,
    driver_log_verbosity: str = "log_callback_only",
    storage_options: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
) -> TrainResult:
    """Trains a model on one version of a table and keeps the checkpoint of its best epoch.

    The version is resolved once, here, and recorded with the run; a table that grows meanwhile changes nothing. The
    ranks average gradients and metrics, so that the number of ranks changes the time and not the training: `batch_size`
    is that of all ranks together.

    Args:
        table: Path or URI of the table, or schema.table.
        version: A number, "latest" or None, a time, or a pin's name.
        entrypoint: The Trial: `module:Class`, `path/to/file.py:Class` or the class.
        np: Ranks: negative as processes here, positive as tasks of a Spark barrier stage, 0 as many as there are slots.
        epochs: Epochs at the most.
        batch_size: Images per step over all ranks.
        hyperparameters: For the Trial.
        seed: Of weights, of the order of rows, of augmentation.
        train_split: Split to train on; None is the whole table.
        validation_split: Split that decides which epoch is the best; None for no validation.
        metric: What decides; `val_loss` by default, `loss` without validation.
        mode: `min` or `max`; known for the usual metrics.
        patience: Stop after so many epochs without improvement; None trains them all.
        image_size: Side, or height and width, that images are resized to. By default they stay as they are stored, at
            the one size that the table's columns height and width tell of every row; a table of mixed sizes needs it.
        class_names: Names by label number, for tables that do not know them.
        tracking_uri: MLflow store; see `lakelens.tracking.runs.resolve_tracking_uri`.
        experiment_name: MLflow experiment; made when missing.
        run_name: As the MLflow UI shows it.
        checkpoint_dir: A folder that the driver and rank 0 share; `lakelens-checkpoints` by default.
        max_restarts: How often training goes on from its last checkpoint after a rank failed.
        stall_timeout_s: Seconds after which a rank that is stopped, or that the others wait for, fails the job; rank 0
            must write a checkpoint in less.
        driver_log_verbosity: `log_callback_only` prints a line per epoch, `all` every line of every rank.
        storage_options: Access to an object store.
        spark: The session for np >= 0; None takes the active one, or starts one.

    Raises:
        UsageError: If the input or a setting must change first: no such table, version or entry point, a misspelt
            hyperparameter, a model that does not fit, a folder out of reach, more ranks than slots.
        TrackingError: If MLflow's store cannot be reached before the launch, or has not taken the records when the
            training has ended; then it names the checkpoint and the file of the records.
        RankFailedError: If a rank raised, died or stalled.
        TrainingPaused: If the training was interrupted (Ctrl-C, SIGTERM): it has written a checkpoint first. A second
            interrupt ends it at once.
    """
    started = time.perf_counter()
    _require_positive(epochs=epochs, batch_size=batch_size)
    if patience is not None:
        _require_positive(patience=patience)
    _require_whole(0, max_restarts=max_restarts)
    goal = _goal(metric, mode, validation_split)
    entry = EntryPoint.parse(entrypoint)
    root = _checkpoint_root(checkpoint_dir)
    feed = DeltaFeed(_location_of(table, spark), version, train_split, seed, storage_options=storage_options)
    validation = _validation_feed(feed, validation_split)
    names = _class_names(feed, class_names)
    size = _image_size([feed] if validation is None else [feed, validation], image_size)
    params = {
        "epochs": epochs,
        "batch_size": batch_size,
        "np": np,
        "seed": seed,
        "patience": patience,
        "train_split": train_split,
        "validation_split": validation_split,
        "image_size": f"{size[0]}x{size[1]}",
    }
    uri = resolve_tracking_uri(tracking_uri)
    read = _recorded(feed, validation)
    with _recorded_run(uri, experiment_name, run_name, entry, goal, read, params) as run:
        # VACUUM stays off the version while it is read, and after that as long as the run that read it matters.
        in_use = pins.tracking(feed.location, feed.version, run.run_id, storage_options=feed.plan.storage_options)
        with _run_folder(root, run) as folder, in_use, RunWriter(run, folder) as writer:
            job = TrainingJob(
                entrypoint=entry,
                training_feed=feed,
                validation_feed=validation,
                hyperparameters=dict(hyperparameters or {}),
                class_names=names,
                image_size=size,
                batch_size=batch_size,
                epochs=epochs,
                seed=seed,
                goal=goal,
                patience=patience,
                folder=folder,
                run=run,
            )
            runner = HorovodRunner(
                np=np,
                driver_log_verbosity=driver_log_verbosity,
                stall_timeout_s=stall_timeout_s,
                name=f"train {read.name}",
                spark=spark,
            )
            outcome = run_segment(runner, job, max_restarts=max_restarts)
            if outcome.reason == "paused":
                raise TrainingPaused(
                    f"run {run.run_id} was interrupted and is paused after step {outcome.step}: {outcome.last}"
                )
            _record_outcome(writer, outcome, _checkpoint_of(outcome, run), entry)
    return TrainResult(
        run_id=run.run_id,
        experiment_id=run.experiment_id,
        tracking_uri=uri,
        table=feed.location,
        version=feed.version,
        checkpoint=outcome.checkpoint,
        digest=outcome.digest,
        metrics=dict(outcome.metrics),
        best_epoch=outcome.best_epoch,
        epochs=outcome.epochs,
        ranks=outcome.ranks,
        seconds=round(time.perf_counter() - started, 3),
    )


def _goal(metric: str | None, mode: str | None, validation_split: str | None) -> Goal:
    goal = Goal.of(metric or ("val_loss" if validation_split is not None else "loss"), mode)
    if validation_split is None and goal.metric.startswith("val_"):
        raise InvalidArgumentError(
            f"metric is {goal.metric!r} and validation_split is None; give a split, or a metric of the training"
        )
    return goal


@contextlib.contextmanager
def _recorded_run(
    uri: str,
    experiment_name: str,
    run_name: str | None,
    entry: EntryPoint,
    goal: Goal,
    read: TableVersion,
    params: Mapping[str, object],
) -> Iterator[RunReference]:
    """Opens the MLflow run and writes down, before anything trains, what will be trained on which rows."""
    tags = {
        ENTRYPOINT_TAG: entry.name,
        METRIC_TAG: f"{goal.metric}:{goal.mode}",
        TABLE_TAG: read.location,
        VERSION_TAG: str(read.version),
    }
    with tracked_run(uri, experiment_name, run_name=run_name, tags=tags, params=dict(params)) as run:
        log_table(run, read)
        record_code(run, entry)
        yield run


def _require_positive(**values: int) -> None:
    _require_whole(1, **values)


def _require_whole(least: int, **values: int) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InvalidArgumentError(f"{name} is {value!r}; it must be a whole number of at least {least}")


def _checkpoint_root(checkpoint_dir: str | Path | None) -> Path:
    place = absolute_path(checkpoint_dir if checkpoint_dir is not None else Path(DEFAULT_CHECKPOINT_DIR))
    if place.startswith("dbfs:"):
        raise InvalidArgumentError(f"checkpoint_dir is {place}; give its mount: /dbfs{place.removeprefix('dbfs:')}")
    if has_scheme(place):
        raise InvalidArgumentError(
            f"checkpoint_dir is {place!r}; it must be a folder that the driver and rank 0 both mount (NFS, /dbfs, "
            "/Volumes); the run's artifacts may lie in an object store"
        )
    return Path(place)


def _location_of(table: str | Path, spark: SparkSession | None) -> str:
    """Gives the table's path; a name of the catalog is looked up by Spark."""
    place = absolute(table)
    if not is_table_name(place):
        return place
    from ...etl.spark.catalog import is_delta_table, path_of
    from ...spark.session import spark_session

    session = spark or spark_session()
    if not is_delta_table(session, place):
        raise NotADeltaTableError(f"the catalog has no Delta table {place}; give schema.table, a path or a URI")
    return absolute(path_of(session, place))


def _validation_feed(feed: DeltaFeed, split: str | None) -> DeltaFeed | None:
    """Opens the validation split of the very version that is trained on."""
    if split is None:
        return None
    try:
        return DeltaFeed(feed.location, feed.version, split, shuffle=False, storage_options=feed.plan.storage_options)
    except (EmptyFeedError, InvalidArgumentError) as error:
        raise type(error)(f"{error}; validation_split=None trains without validation") from error


def _class_names(feed: DeltaFeed, given: Sequence[str] | None) -> list[str]:
    names = list(given) if given is not None else feed.class_names
    if not names:
        raise NotAnImageTableError(
            f"{feed.location}@{feed.version} has no names of its classes (table property lakelens.labels); "
            "pass class_names=[...], one per label number"
        )
    return [name or str(number) for number, name in enumerate(names)]


def _image_size(feeds: Sequence[DeltaFeed], given: int | Sequence[int] | None) -> tuple[int, int]:
    """Gives the size that images are resized to, or the one that all of them have.

    Raises:
        InvalidArgumentError: If none is given, and the images differ in size or the table does not tell it.
    """
    if given is None:
        return size_of_all_images(feeds)
    sides = (given, given) if isinstance(given, int) else tuple(given)
    if len(sides) != 2 or not all(isinstance(side, int) and not isinstance(side, bool) and side > 0 for side in sides):
        raise InvalidArgumentError(f"image_size is {given!r}; give one side or (height, width), in pixels above 0")
    return sides[0], sides[1]


def _recorded(feed: DeltaFeed, validation: DeltaFeed | None) -> TableVersion:
    rows = {feed.split or "all": feed.rows}
    if validation is not None:
        rows[validation.split or "all"] = validation.rows
    files = {*feed.plan.files.paths, *(validation.plan.files.paths if validation is not None else ())}
    digest = hashlib.sha256("\n".join([str(feed.version), *sorted(files)]).encode()).hexdigest()
    return TableVersion(feed.location, feed.version, digest[:32], rows)


@contextlib.contextmanager
def _run_folder(root: Path, run: RunReference) -> Iterator[Path]:
    """Makes the run's own checkpoint folder; a job that fails leaves whole checkpoints there, and nothing else."""
    folder = root / run.run_id
    try:
        folder.mkdir(parents=True)
        (folder / PROBE_FILE).write_text(run.run_id, encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"checkpoint_dir {root} cannot be written ({error}); give another folder") from error
    try:
        yield folder
    finally:
        # Every rank has ended by now, so whatever is half-written stays so.
        (folder / PROBE_FILE).unlink(missing_ok=True)
        sweep(folder)
        with contextlib.suppress(OSError):  # not empty: it holds checkpoints
            folder.rmdir()


def _checkpoint_of(outcome: SegmentOutcome, run: RunReference) -> Checkpoint:
    """Opens the checkpoint that rank 0 has written."""
    found = open_checkpoint(outcome.checkpoint)
    if found.digest != outcome.digest:
        raise CheckpointError(
            f"{found.path} has digest {found.digest}, rank 0 of run {run.run_id} wrote {outcome.digest}: something "
            "has changed it since"
        )
    return found


def _record_outcome(writer: RunWriter, outcome: SegmentOutcome, checkpoint: Checkpoint, entry: EntryPoint) -> None:
    """Writes what the run is remembered by; the digest comes last, so that it marks a whole copy."""
    best = {f"best_{name}": value for name, value in outcome.metrics.items()}
    writer.log(RunRecord(best, outcome.best_epoch))
    writer.log_folder(checkpoint.path, CHECKPOINT_ARTIFACT)
    try:
        with mlflow_model_of(checkpoint, entry) as model:
            writer.log_model(model, outcome.best_epoch)
            writer.set_tags({DIGEST_TAG: checkpoint.digest})
            writer.finish()
    except TrackingError as error:
        raise TrackingError(f"{error}. The training has ended; its best checkpoint is {checkpoint.path}") from error
