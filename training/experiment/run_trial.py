"""Runs one trial on one pinned version of an image table, on one or many ranks, as one MLflow run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import CheckpointError, InvalidArgumentError, TrackingError, TrainingPaused
from ...etl.pins import pins
from ...locations import absolute_path, has_scheme
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
    register_model,
    resolve_tracking_uri,
    resumed_run,
    steps_of,
    tracked_run,
)
from ..checkpoints.checkpoint import Checkpoint, last_checkpoint, open_checkpoint, sweep
from ..configuration.experiment import ExperimentConfig
from ..record.code_record import record_code
from ..record.mlflow_model import mlflow_model_of
from ..runner.runner import HorovodRunner
from ..segments.checks import PROBE_FILE
from ..segments.job import TrainingJob
from ..segments.segment import SegmentOutcome
from ..trials.entrypoint import EntryPoint
from ..trials.metrics import Goal
from .config_meaning import Lengths, hyperparameters_of, ranks_of, require_trainable, retention_of
from .config_record import log_config
from .trial_data import TrialData
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


def run_trial(
    config: ExperimentConfig,
    *,
    entrypoint: EntryPoint | None = None,
    version: int | str | datetime | None = None,
    np: int | None = None,
    run_name: str | None = None,
    driver_log_verbosity: str = "log_callback_only",
    spark: SparkSession | None = None,
    resumes: str | None = None,
) -> TrainResult:
    """Runs the one trial of an experiment: what `train`, `lakelens train` and an experiment file lead to.

    Args:
        config: The experiment.
        entrypoint: In place of the config's, for a class that no file can name.
        version: In place of the config's, for a time.
        np: Ranks as `train` counts them, in place of the config's resources.
        run_name: In place of the config's name.
        driver_log_verbosity: As for `train`.
        spark: The session for ranks on executors; None takes the active one, or starts one.
        resumes: Id of the run that goes on, from its last checkpoint; None begins a run.

    Raises:
        ConfigurationError: If the config asks for several trials, or for what does not exist yet.
        LakelensError: As `train`.
    """
    started = time.perf_counter()
    require_trainable(config)
    goal, seed, rules = config.goal, config.reproducibility.experiment_seed, config.early_stopping
    entry = entrypoint or EntryPoint.parse(config.entrypoint)
    root = checkpoint_root(config.checkpoint_storage.path)
    data = TrialData.open(config.data, seed, version=version, spark=spark)
    feed, batch_size = data.training, config.global_batch_size
    lengths = Lengths.of(config, feed.steps_per_epoch(batch_size))
    ranks = np if np is not None else ranks_of(config.resources, spark)
    params = {
        "epochs": lengths.epochs,
        "batch_size": batch_size,
        "np": ranks,
        "seed": seed,
        "patience": rules.patience if rules is not None else None,
        "train_split": config.data.train_split,
        "validation_split": config.data.validation_split,
        "image_size": f"{data.image_size[0]}x{data.image_size[1]}",
    }
    uri = resolve_tracking_uri(config.tracking.uri)
    read = data.described()
    name = run_name or config.name
    opened = (
        _recorded_run(uri, config.tracking.experiment, name, entry, goal, read, params)
        if resumes is None
        else resumed_run(uri, resumes)
    )
    with opened as run:
        recorded = steps_of(run, goal.metric) if resumes is not None else []
        if resumes is None:
            log_config(run, config, ranks, feed.version)
        # VACUUM stays off the version while it is read, and after that as long as the run that read it matters.
        in_use = pins.tracking(feed.location, feed.version, run.run_id, storage_options=feed.plan.storage_options)
        with _run_folder(root, run) as folder, in_use, RunWriter(run, folder, recorded) as writer:
            job = TrainingJob(
                entrypoint=entry,
                training_feed=feed,
                validation_feed=data.validation,
                hyperparameters=hyperparameters_of(config),
                class_names=data.class_names,
                image_size=data.image_size,
                batch_size=batch_size,
                epochs=lengths.epochs,
                seed=seed,
                goal=goal,
                patience=rules.patience if rules is not None else None,
                min_delta=rules.min_delta if rules is not None else 0.0,
                folder=folder,
                run=run,
                steps=lengths.steps,
                validation_period=lengths.validation_period,
                checkpoint_period=lengths.checkpoint_period,
                checkpoint_policy=config.checkpoint_policy,
                retention=retention_of(config.checkpoint_storage),
            )
            runner = HorovodRunner(
                np=ranks,
                driver_log_verbosity=driver_log_verbosity,
                stall_timeout_s=config.resources.stall_timeout_s,
                slots_wait_s=config.resources.slots_wait_s,
                use_gpu=config.resources.use_gpu,
                env=config.resources.env,
                driver_port=config.resources.driver_port or 0,
                name=f"train {read.name}",
                spark=spark,
            )
            start = last_checkpoint(folder) if resumes is not None else None
            outcome = run_segment(runner, job, start=start, max_restarts=config.max_restarts)
            if outcome.reason == "paused":
                raise TrainingPaused(
                    f"run {run.run_id} was interrupted and has paused after step {outcome.step} of {lengths.steps}; "
                    f"lakelens train --resume {run.run_id} goes on from {outcome.last}"
                )
            checkpoint = _checkpoint_of(outcome, run)
            _record_outcome(writer, outcome, checkpoint, entry)
    if config.tracking.register_as is not None:
        register_model(run.run_id, config.tracking.register_as, tracking_uri=uri)
    return TrainResult(
        run_id=run.run_id,
        experiment_id=run.experiment_id,
        tracking_uri=uri,
        table=feed.location,
        version=feed.version,
        checkpoint=str(checkpoint.path),
        digest=checkpoint.digest,
        metrics=dict(outcome.metrics),
        best_epoch=outcome.best_epoch,
        epochs=outcome.epochs,
        ranks=outcome.ranks,
        seconds=round(time.perf_counter() - started, 3),
    )


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


def checkpoint_root(checkpoint_dir: str | Path | None) -> Path:
    """Gives the folder that holds the folders of runs.

    Raises:
        InvalidArgumentError: If it is no folder of a file system.
    """
    place = absolute_path(checkpoint_dir if checkpoint_dir is not None else Path(DEFAULT_CHECKPOINT_DIR))
    if place.startswith("dbfs:"):
        raise InvalidArgumentError(f"checkpoint_dir is {place}; give its mount: /dbfs{place.removeprefix('dbfs:')}")
    if has_scheme(place):
        raise InvalidArgumentError(
            f"checkpoint_dir is {place!r}; it must be a folder that the driver and rank 0 both mount (NFS, /dbfs, "
            "/Volumes); the run's artifacts may lie in an object store"
        )
    return Path(place)


@contextlib.contextmanager
def _run_folder(root: Path, run: RunReference) -> Iterator[Path]:
    """Makes the run's own checkpoint folder; a job that fails leaves whole checkpoints there, and nothing else."""
    folder = root / run.run_id
    try:
        folder.mkdir(parents=True, exist_ok=True)
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
    """Opens the best checkpoint that rank 0 has written, or the last one where the config keeps no best one."""
    if not outcome.checkpoint:
        return open_checkpoint(outcome.last)
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
