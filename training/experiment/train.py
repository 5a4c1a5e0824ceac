"""Trains a model from arguments or an experiment, or resumes a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ...errors import InvalidArgumentError
from ...job_keys import Job
from ...options import named_options, whole_number
from ...spark.session import SessionSource
from ...table import Table, Version, version_of
from ...tracking.runs import check_resumable, resolve_tracking_uri
from ..configuration.experiment import ExperimentConfig
from ..configuration.space import GLOBAL_BATCH_SIZE
from ..feed.read_options import image_size_of
from ..trials.entrypoint import EntryPoint
from ..trials.trial import Trial
from .config_record import read_config
from .run_trial import TrainResult, run_trial


@named_options
def train(
    table: str | Path | Mapping[str, Any] | ExperimentConfig,
    *,
    version: int | str | datetime | None = None,
    entrypoint: str | type[Trial] | None = None,
    slots_per_trial: int | None = None,
    strategy: str | None = None,
    epochs: int | None = None,
    global_batch_size: int | None = None,
    hyperparameters: Mapping[str, Any] | None = None,
    seed: int | None = None,
    metric: str | None = None,
    image_size: int | Sequence[int] | None = None,
    tracking_uri: str | None = None,
    config: Mapping[str, Any] | None = None,
    spark: SessionSource | None = None,
    job: str | Job | None = None,
) -> TrainResult:
    """Trains a model on one version of a table and keeps the checkpoint of its best epoch.

    The version is resolved once, on the driver, and recorded with the run; rows added meanwhile have no effect. The
    ranks average gradients and metrics, so that the number of ranks changes the time and not the result:
    `global_batch_size` counts the images of all ranks together.

    Every argument is a key of the experiment file. One that is not given keeps the value of the experiment, or the
    default of its key.

    Args:
        table: Path or URI of the table, or schema.table; `table@version` names the version too. Or an experiment: a
            YAML file, its keys as a dict, or an ExperimentConfig.
        version: A number, "latest", a time, or a pin's name. Key: `data.version`.
        entrypoint: The Trial: `module:Class`, `path/to/file.py:Class` or the class. Key: `entrypoint`.
        slots_per_trial: Ranks; 0 takes every slot of the cluster. Key: `resources.slots_per_trial`.
        strategy: Where they run: `single`, `mirrored`, `horovod_local` (processes here), `horovod_cluster` (tasks of a
            Spark barrier stage) or `auto`. Key: `resources.strategy`.
        epochs: Epochs at most. Key: `searcher.max_length`.
        global_batch_size: Images per step over all ranks. Key: `hyperparameters.global_batch_size`.
        hyperparameters: For the Trial. Key: `hyperparameters`.
        seed: Of weights, of the order of rows, of augmentation. Key: `reproducibility.experiment_seed`.
        metric: Metric that decides; `val_loss` by default, `loss` without validation. Key: `searcher.metric`.
        image_size: Side, or height and width, to resize images to. By default images keep their stored size, which the
            table's columns height and width must give as the same for every row; a table of mixed sizes needs it.
            Key: `data.image_size`.
        tracking_uri: MLflow store; see `lakelens.tracking.runs.resolve_tracking_uri`. Key: `tracking.uri`.
        config: Other keys of the experiment file, nested as there; they replace those of an experiment, and the
            arguments above replace them.
        spark: The session for ranks on executors, or a function that opens it after all other checks; None takes the
            active one, or starts one.
        job: The key of a job, such as the id of a scheduler's task, or a `Job`. A call that repeats key and arguments
            returns the result of the first one; it follows it while it runs, and resumes it if it was interrupted or
            has failed. Key: `job`.

    Raises:
        UsageError: If the input or a setting is invalid: a missing table, version or entry point, a misspelt
            hyperparameter, a model that does not fit, a folder out of reach, more ranks than slots.
        TrackingError: If MLflow's store cannot be reached before the launch, or has not accepted the records at the end
            of the training; then it names the checkpoint and the file of the records.
        RankFailedError: If a rank raised, died or stalled.
        TrainingPaused: If the training was interrupted (Ctrl-C, SIGTERM): it has written a checkpoint first. A second
            interrupt ends it at once.

    Examples:
        >>> run = lakelens.train("tables/photos@0", epochs=1, global_batch_size=16)
        >>> run.version, run.epochs, run.ranks
        (0, 1, 1)
    """
    # A class, which a file cannot express, is passed separately.
    entry = None if entrypoint is None else EntryPoint.parse(entrypoint)
    experiment = experiment_of(
        table,
        version=version,
        entrypoint=None if entry is None else entry.name,
        slots_per_trial=slots_per_trial,
        strategy=strategy,
        epochs=epochs,
        global_batch_size=global_batch_size,
        hyperparameters=hyperparameters,
        seed=seed,
        metric=metric,
        image_size=image_size,
        tracking_uri=tracking_uri,
        config=config,
    )
    return run_trial(experiment, entrypoint=entry, spark=spark, job=Job.of(job))


def experiment_of(
    table: str | Path | Mapping[str, Any] | ExperimentConfig,
    *,
    version: int | str | datetime | None = None,
    entrypoint: str | None = None,
    slots_per_trial: int | None = None,
    strategy: str | None = None,
    epochs: int | None = None,
    global_batch_size: int | None = None,
    hyperparameters: Mapping[str, Any] | None = None,
    seed: int | None = None,
    metric: str | None = None,
    image_size: int | Sequence[int] | None = None,
    tracking_uri: str | None = None,
    config: Mapping[str, Any] | None = None,
    overrides: Iterable[str] = (),
) -> ExperimentConfig:
    """Makes the experiment of a training from the arguments of `train`; `overrides` (`a.b=VALUE`) replace them all."""
    if config is not None and not isinstance(config, Mapping):
        raise InvalidArgumentError(f"config={config!r}: give a dict with keys of the experiment file")
    source, named = table, version_of(version)
    if isinstance(table, (str, Path)) and Path(table).suffix not in (".yaml", ".yml"):
        found = Table.of(table, version)
        source, named = {"data": {"table": found.location}}, found.version
    sides = None if image_size is None else list(image_size_of(image_size))
    length = None if epochs is None else {"epochs": whole_number("epochs", epochs, 1)}
    size = None if global_batch_size is None else whole_number("global_batch_size", global_batch_size, 1)
    slots = None if slots_per_trial is None else whole_number("slots_per_trial", slots_per_trial, 0)
    keys: dict[str, dict[str, Any]] = {
        "data": {"version": _version_key(named) if version is not None else named, "image_size": sides},
        "hyperparameters": {GLOBAL_BATCH_SIZE: size},
        "searcher": {"max_length": length, "metric": metric},
        "resources": {"slots_per_trial": slots, "strategy": strategy},
        "reproducibility": {"experiment_seed": None if seed is None else whole_number("seed", seed)},
        "tracking": {"uri": tracking_uri},
    }
    given = {name: {key: value for key, value in keys[name].items() if value is not None} for name in keys}
    given["hyperparameters"] = {**(hyperparameters or {}), **given["hyperparameters"]}  # one of the Trial's may be None
    named_trial = {} if entrypoint is None else {"entrypoint": entrypoint}
    changes = {name: section for name, section in given.items() if section} | named_trial
    return ExperimentConfig.read(source, overrides, changes=(config or {}, changes))


def resume(
    run_id: str,
    *,
    tracking_uri: str | None = None,
    spark: SessionSource | None = None,
) -> TrainResult:
    """Resumes a training that failed or was interrupted, or whose driver died, from its last checkpoint.

    The run, its config and its version stay the same.

    Args:
        run_id: Its MLflow run.
        tracking_uri: As for `train`.
        spark: As for `train`.

    Raises:
        InvalidArgumentError: If the run has finished, or is running.
        LakelensError: As `train`.

    Examples:
        >>> lakelens.resume(run.run_id)
        Traceback (most recent call last):
        lakelens.errors.InvalidArgumentError: run ... is FINISHED...
    """
    uri = resolve_tracking_uri(tracking_uri)
    config = read_config(uri, run_id)
    check_resumable(uri, run_id)
    tracked = config.tracking.model_copy(update={"uri": uri})
    return run_trial(config.model_copy(update={"tracking": tracked}), spark=spark, resumes=run_id)


def _version_key(version: Version) -> int | str:
    """Returns a version as the experiment file names it."""
    if isinstance(version, datetime):
        return version.isoformat()
    return "latest" if version is None else version
