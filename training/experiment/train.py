"""Trains a model from arguments or an experiment, or resumes a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

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

if TYPE_CHECKING:
    from typing_extensions import Unpack


class TrainOptions(TypedDict, total=False):
    """Keywords of `train`, which documents them: keys of the experiment."""

    version: int | str | datetime | None
    entrypoint: str | type[Trial] | None
    slots_per_trial: int | None
    strategy: str | None
    epochs: int | None
    global_batch_size: int | None
    hyperparameters: Mapping[str, Any] | None
    seed: int | None
    metric: str | None
    image_size: int | Sequence[int] | None
    tracking_uri: str | None
    config: Mapping[str, Any] | None


@named_options
def train(
    table: str | Path | Mapping[str, Any] | ExperimentConfig,
    *,
    spark: SessionSource | None = None,
    job: str | Job | None = None,
    **options: Unpack[TrainOptions],
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
        spark: The session for ranks on executors, or a function that opens it after all other checks; None takes the
            active one, or starts one.
        job: The key of a job, such as the id of a scheduler's task, or a `Job`. A call that repeats key and arguments
            returns the result of the first one; it follows it while it runs, and resumes it if it was interrupted or
            has failed. Key: `job`.
        **options: Keys of the experiment.

            version: A number, "latest", a time, or a pin's name. Key: `data.version`.
            entrypoint: The Trial: `module:Class`, `path/to/file.py:Class` or the class. Key: `entrypoint`.
            slots_per_trial: Ranks; 0 takes every slot of the cluster. Key: `resources.slots_per_trial`.
            strategy: Where they run: `single`, `mirrored`, `horovod_local` (processes here), `horovod_cluster` (tasks
                of a Spark barrier stage) or `auto`. Key: `resources.strategy`.
            epochs: Epochs at most. Key: `searcher.max_length`.
            global_batch_size: Images per step over all ranks. Key: `hyperparameters.global_batch_size`.
            hyperparameters: For the Trial. Key: `hyperparameters`.
            seed: Of weights, of the order of rows, of augmentation. Key: `reproducibility.experiment_seed`.
            metric: Metric that decides; `val_loss` by default, `loss` without validation. Key: `searcher.metric`.
            image_size: Side, or height and width, to resize images to. By default images keep their stored size, which
                the table's columns height and width must give as the same for every row; a table of mixed sizes needs
                it. Key: `data.image_size`.
            tracking_uri: MLflow store; see `lakelens.tracking.runs.resolve_tracking_uri`. Key: `tracking.uri`.
            config: Other keys of the experiment file, nested as there; they replace those of an experiment, and the
                arguments above replace them.

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
    given = options.pop("entrypoint", None)
    # A class, which a file cannot express, is passed separately.
    entry = None if given is None else EntryPoint.parse(given)
    if entry is not None:
        options["entrypoint"] = entry.name
    return run_trial(experiment_of(table, **options), entrypoint=entry, spark=spark, job=Job.of(job))


def experiment_of(
    table: str | Path | Mapping[str, Any] | ExperimentConfig,
    overrides: Iterable[str] = (),
    **options: Unpack[TrainOptions],
) -> ExperimentConfig:
    """Makes the experiment of a training from the arguments of `train`; `overrides` (`a.b=VALUE`) replace them all."""

    def whole(name: str, least: int | None = None) -> int | None:
        value = given.get(name)
        return None if value is None else whole_number(name, value, least)

    given: Mapping[str, Any] = {**options}
    config, version, image_size = given.get("config"), given.get("version"), given.get("image_size")
    if config is not None and not isinstance(config, Mapping):
        raise InvalidArgumentError(f"config={config!r}: give a dict with keys of the experiment file")
    source, named = table, version_of(version)
    if isinstance(table, (str, Path)) and Path(table).suffix not in (".yaml", ".yml"):
        found = Table.of(table, version)
        source, named = {"data": {"table": found.location}}, found.version
    sides = None if image_size is None else list(image_size_of(image_size))
    epochs = whole("epochs", 1)
    keys: dict[str, dict[str, Any]] = {
        "data": {"version": _version_key(named) if version is not None else named, "image_size": sides},
        "hyperparameters": {GLOBAL_BATCH_SIZE: whole("global_batch_size", 1)},
        "searcher": {"max_length": None if epochs is None else {"epochs": epochs}, "metric": given.get("metric")},
        "resources": {"slots_per_trial": whole("slots_per_trial", 0), "strategy": given.get("strategy")},
        "reproducibility": {"experiment_seed": whole("seed")},
        "tracking": {"uri": given.get("tracking_uri")},
    }
    sections = {name: {key: value for key, value in keys[name].items() if value is not None} for name in keys}
    # One of the Trial's may be None.
    sections["hyperparameters"] = {**(given.get("hyperparameters") or {}), **sections["hyperparameters"]}
    named_trial = {} if given.get("entrypoint") is None else {"entrypoint": given["entrypoint"]}
    changes = {name: section for name, section in sections.items() if section} | named_trial
    return ExperimentConfig.read(source, overrides, changes=(config or {}, changes))


def resume(run_id: str, *, tracking_uri: str | None = None, spark: SessionSource | None = None) -> TrainResult:
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
        lakelens.errors.RunNotResumableError: run ... is FINISHED...
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
