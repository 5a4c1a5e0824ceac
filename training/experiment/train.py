"""Trains a model from arguments or an experiment, or resumes a run."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ...errors import InvalidArgumentError
from ...options import named_options, whole_number
from ...spark.session import SessionSource
from ...table import Table
from ...tracking.runs import check_resumable, resolve_tracking_uri
from ..configuration.experiment import ExperimentConfig
from ..configuration.space import GLOBAL_BATCH_SIZE
from ..feed.read_options import image_size_of
from ..trials.entrypoint import DEFAULT_ENTRYPOINT, EntryPoint
from ..trials.metrics import Goal
from ..trials.trial import Trial
from .config_record import read_config
from .run_folder import checkpoint_root
from .run_trial import TrainResult, run_trial


@named_options
def train(
    table: str | Path | Mapping[str, Any] | ExperimentConfig,
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
    slots_wait_s: float = 60.0,
    use_gpu: bool | None = None,
    env: Mapping[str, str] | None = None,
    driver_port: int = 0,
    driver_log_verbosity: str = "log_callback_only",
    filters: Mapping[str, Any] | None = None,
    image_column: str = "image",
    label_column: str = "label",
    split_column: str = "split",
    format_column: str = "format",
    boxes_column: str = "annotations",
    bad_rows: str = "error",
    read_timeout_s: float = 45.0,
    storage_options: Mapping[str, str] | None = None,
    spark: SessionSource | None = None,
) -> TrainResult:
    """Trains a model on one version of a table and keeps the checkpoint of its best epoch.

    The version is resolved once, on the driver, and recorded with the run; rows added meanwhile have no effect. The
    ranks average gradients and metrics, so that the number of ranks changes the time and not the result: `batch_size`
    is that of all ranks together.

    Args:
        table: Path or URI of the table, or schema.table; `table@version` names the version too.
            Or an experiment: a YAML file, its keys as a dict, or an ExperimentConfig;
            then `driver_log_verbosity` and `spark` are the only other arguments allowed.
        version: A number, "latest" or None, a time, or a pin's name.
        entrypoint: The Trial: `module:Class`, `path/to/file.py:Class` or the class.
        np: Ranks: negative as processes here, positive as tasks of a Spark barrier stage, 0 every slot of the cluster.
        epochs: Epochs at most.
        batch_size: Images per step over all ranks.
        hyperparameters: For the Trial.
        seed: Of weights, of the order of rows, of augmentation.
        train_split: Split to train on; None is the whole table.
        validation_split: Split that decides which epoch is the best; None for no validation.
        metric: Metric that decides; `val_loss` by default, `loss` without validation.
        mode: `min` or `max`; by default that of the metric's name, for the usual metrics.
        patience: Stop after this number of epochs without improvement; None trains all epochs.
        image_size: Side, or height and width, to resize images to. By default images keep their stored size, which the
            table's columns height and width must give as the same for every row; a table of mixed sizes needs it.
        class_names: Names by label number, for tables without names.
        tracking_uri: MLflow store; see `lakelens.tracking.runs.resolve_tracking_uri`.
        experiment_name: MLflow experiment; created if it does not exist.
        run_name: Name of the MLflow run.
        checkpoint_dir: A folder that the driver and rank 0 share; `lakelens-checkpoints` by default.
        max_restarts: How often training continues from its last checkpoint after a rank failed.
        stall_timeout_s: Seconds after which a stopped rank, or a rank that the others wait for, fails the job; rank 0
            must write a checkpoint in less time.
        slots_wait_s: Seconds to wait for slots that other jobs hold.
        use_gpu: True: one GPU for each rank; False: none; None: one each if there are any.
        env: Environment variables for every rank. Those with names like secrets are not recorded.
        driver_port: The driver's port for ranks on executors; 0 takes a free one.
        driver_log_verbosity: `log_callback_only` prints a line per epoch, `all` every line of every rank.
        filters: By column name, a value or a list of values; both splits keep only rows with these values.
        image_column: Name of the column of image bytes, for tables that lakelens did not write.
        label_column: Name of the column of class numbers.
        split_column: Name of the column of splits.
        format_column: Name of the column of the stored form; need not exist.
        boxes_column: Name of the column of annotations; need not exist.
        bad_rows: `error` ends the training at a row that cannot be decoded or has no label; `skip` leaves it out and
            logs it.
        read_timeout_s: Seconds after which an unanswered read of the table is an error.
        storage_options: Access to an object store.
        spark: The session for np >= 0, or a function that opens it after all other checks; None takes the active one,
            or starts one.

    Raises:
        UsageError: If the input or a setting is invalid: a missing table, version or entry point, a misspelt
            hyperparameter, a model that does not fit, a folder out of reach, more ranks than slots.
        TrackingError: If MLflow's store cannot be reached before the launch, or has not accepted the records at the end
            of the training; then it names the checkpoint and the file of the records.
        RankFailedError: If a rank raised, died or stalled.
        TrainingPaused: If the training was interrupted (Ctrl-C, SIGTERM): it has written a checkpoint first. A second
            interrupt ends it at once.
    """
    given = locals()
    if not isinstance(table, (str, Path)) or Path(table).suffix in (".yaml", ".yml"):
        _require_nothing_beside(given)
        return run_trial(ExperimentConfig.read(table), driver_log_verbosity=driver_log_verbosity, spark=spark)
    _require_positive(epochs=epochs, batch_size=batch_size)
    if patience is not None:
        _require_positive(patience=patience)
    _require_whole(0, max_restarts=max_restarts)
    named = Table.of(table, version)
    goal = _goal(metric, mode, validation_split)
    entry = EntryPoint.parse(entrypoint)
    root = checkpoint_root(checkpoint_dir)
    sides = None if image_size is None else image_size_of(image_size)
    config = ExperimentConfig.read(
        {
            "entrypoint": entry.name,
            "data": {
                "table": named.location,
                "train_split": train_split,
                "validation_split": validation_split,
                "image_size": None if sides is None else list(sides),
                "class_names": None if class_names is None else list(class_names),
                "filters": None if filters is None else dict(filters),
                "columns": {
                    "image": image_column,
                    "label": label_column,
                    "split": split_column,
                    "format": format_column,
                    "boxes": boxes_column,
                },
                "bad_rows": bad_rows,
                "read_timeout_s": float(read_timeout_s),
                "storage_options": dict(storage_options or {}),
            },
            "hyperparameters": {**(hyperparameters or {}), GLOBAL_BATCH_SIZE: batch_size},
            "searcher": {
                "metric": goal.metric,
                "smaller_is_better": goal.mode == "min",
                "max_length": {"epochs": epochs},
            },
            "resources": {
                "stall_timeout_s": float(stall_timeout_s),
                "slots_wait_s": float(slots_wait_s),
                "use_gpu": use_gpu,
                "env": dict(env or {}),
                "driver_port": driver_port or None,
            },
            "max_restarts": max_restarts,
            "checkpoint_storage": {"path": str(root)},
            "reproducibility": {"experiment_seed": whole_number("seed", seed)},
            "early_stopping": None if patience is None else {"patience": patience},
            "tracking": {"uri": tracking_uri, "experiment": experiment_name},
        }
    )
    # A class or a time, which a file cannot express, is passed separately.
    return run_trial(
        config,
        entrypoint=entry,
        version="latest" if named.version is None else named.version,
        np=np,
        run_name=run_name,
        driver_log_verbosity=driver_log_verbosity,
        spark=spark,
    )


def resume(
    run_id: str,
    *,
    tracking_uri: str | None = None,
    driver_log_verbosity: str = "log_callback_only",
    spark: SessionSource | None = None,
) -> TrainResult:
    """Resumes a training that failed or was interrupted, or whose driver died, from its last checkpoint.

    The run, its config and its version stay the same.

    Args:
        run_id: Its MLflow run.
        tracking_uri: As for `train`.
        driver_log_verbosity: As for `train`.
        spark: As for `train`.

    Raises:
        InvalidArgumentError: If the run has finished, or is running.
        LakelensError: As `train`.
    """
    uri = resolve_tracking_uri(tracking_uri)
    config, np = read_config(uri, run_id)
    check_resumable(uri, run_id)
    tracked = config.tracking.model_copy(update={"uri": uri})
    return run_trial(
        config.model_copy(update={"tracking": tracked}),
        np=np,
        driver_log_verbosity=driver_log_verbosity,
        spark=spark,
        resumes=run_id,
    )


def _require_nothing_beside(arguments: Mapping[str, Any]) -> None:
    """Checks that no other arguments accompany an experiment."""
    for name, parameter in inspect.signature(train).parameters.items():
        if name in ("table", "driver_log_verbosity", "spark") or arguments[name] == parameter.default:
            continue
        raise InvalidArgumentError(f"{name}={arguments[name]!r} beside an experiment: set it in the experiment's keys")


def _goal(metric: str | None, mode: str | None, validation_split: str | None) -> Goal:
    goal = Goal.of(metric or ("val_loss" if validation_split is not None else "loss"), mode)
    if validation_split is None and goal.metric.startswith("val_"):
        raise InvalidArgumentError(
            f"metric is {goal.metric!r} and validation_split is None; give a split, or a metric of the training"
        )
    return goal


def _require_positive(**values: int) -> None:
    _require_whole(1, **values)


def _require_whole(least: int, **values: int) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InvalidArgumentError(f"{name} is {value!r}; it must be a whole number of at least {least}")
