"""Trains a model on one version of an image table (`lakelens train`, or spark-submit)."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from lakelens.errors import InvalidArgumentError
from lakelens.jobs.command import add_session_arguments, key_values, main_of, session_of
from lakelens.locations import is_table_name

DESCRIPTION = "Train a model on one pinned version of an image table."

# No split is called so: the command line's word for Python's None.
_NONE = "none"
COLUMN_ROLES = ("image", "label", "split", "format", "boxes")
# What goes beside an experiment file, and beside --resume; all else is a key of the experiment.
_BESIDE_A_FILE = frozenset({"table", "set", "dry_run", "master", "conf"})
_BESIDE_A_RUN = frozenset({"resume", "tracking_uri", "master", "conf"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the job's flags."""
    parser.add_argument(
        "table",
        nargs="?",
        metavar="TABLE[@VERSION]|FILE",
        help="image table (path, URI or catalog.schema.table), or an experiment file (*.yaml)",
    )
    parser.add_argument(
        "--resume",
        default=None,
        metavar="RUN_ID",
        help="continue a run that failed or was interrupted",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a key of the experiment file, as a.b=VALUE"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the resolved plan of the experiment file, start nothing"
    )
    parser.add_argument("--version", default=None, help="number, timestamp or pin; the latest by default")
    parser.add_argument(
        "--entrypoint",
        default="lakelens.training.trials.small_cnn:SmallCnn",
        help="the Trial: module:Class or path/to/file.py:Class",
    )
    parser.add_argument(
        "--np", type=int, default=-1, help="ranks: negative on the driver, positive as Spark tasks, 0 every slot"
    )
    parser.add_argument("--epochs", type=int, default=10, help="most epochs")
    parser.add_argument("--batch-size", type=int, default=64, help="images per step over all ranks")
    parser.add_argument(
        "--hparam", action="append", default=[], metavar="NAME=VALUE", help="a hyperparameter (repeatable)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and order")
    parser.add_argument(
        "--metric", default=None, help="the deciding metric; default: val_loss, or loss without validation"
    )
    parser.add_argument("--mode", default=None, help="min or max; derived for the usual metrics")
    parser.add_argument("--patience", type=int, default=None, help="stop after this many epochs without improvement")
    parser.add_argument("--tracking-uri", default=None, help="MLflow tracking URI; default: MLFLOW_TRACKING_URI")
    parser.add_argument("--experiment", default="lakelens", help="MLflow experiment")
    parser.add_argument("--run-name", default=None, help="name of the MLflow run")
    parser.add_argument("--checkpoint-dir", default=None, help="folder that every rank can write")
    _add_data_arguments(parser)
    _add_rank_arguments(parser)
    add_session_arguments(parser)


def _add_data_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("data")
    group.add_argument("--train-split", default="train", help=f"training split; {_NONE} is the whole table")
    group.add_argument(
        "--validation-split", default="validation", help=f"validation split; {_NONE} disables validation"
    )
    group.add_argument(
        "--image-size", default=None, metavar="SIDE|HEIGHTxWIDTH", help="pixels that images are resized to, as 224"
    )
    group.add_argument(
        "--class-name",
        action="append",
        default=[],
        metavar="NAME",
        help="name of label 0, 1, ... in this order, for a table without class names (repeatable)",
    )
    group.add_argument(
        "--storage-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="access to an object store, under delta-rs' names (repeatable)",
    )
    group.add_argument(
        "--filter",
        action="append",
        default=[],
        metavar="COLUMN=VALUE",
        help="rows to keep, in both splits (repeatable)",
    )
    group.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="ROLE=NAME",
        help=f"another name of the column of {', '.join(COLUMN_ROLES)} (repeatable)",
    )
    group.add_argument(
        "--bad-rows", default="error", help="error, or skip: rows that cannot be decoded or have no label are left out"
    )
    group.add_argument(
        "--read-timeout-s",
        type=float,
        default=45.0,
        help="seconds that a read of the table may take to answer",
    )


def _add_rank_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("ranks")
    group.add_argument("--max-restarts", type=int, default=0, help="restarts from the last checkpoint")
    group.add_argument(
        "--use-gpu", action=argparse.BooleanOptionalAction, default=None, help="one GPU per rank, or none"
    )
    group.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an environment variable of the ranks (repeatable)",
    )
    group.add_argument("--slots-wait-s", type=float, default=60.0, help="seconds to wait for free slots")
    group.add_argument("--stall-timeout-s", type=float, default=60.0, help="seconds until a stopped rank fails the job")
    group.add_argument("--driver-port", type=int, default=0, help="port that ranks on executors connect to; 0 is any")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the training and returns run id, version, checkpoint and metrics."""
    if (args.table is None) == (args.resume is None):
        raise InvalidArgumentError("give a table, an experiment file, or --resume RUN_ID")
    if args.resume is not None:
        _require_no_flags_beside(
            args, f"--resume {args.resume}", _BESIDE_A_RUN, "a resumed run keeps its configuration"
        )
        return resume_run(args)
    if args.table.endswith((".yaml", ".yml")):
        return _run_experiment(args)
    if args.set or args.dry_run:
        raise InvalidArgumentError(f"--set and --dry-run go with an experiment file (*.yaml), not with {args.table}")
    from lakelens.table import Table
    from lakelens.tracking.runs import without_password
    from lakelens.training.experiment.train import train

    needs_spark = args.np >= 0 or Table.of(args.table, args.version).is_name
    if not needs_spark and (args.master or args.conf):
        raise _unused_session(args, f"ranks on the driver (--np {args.np})", ", or give --np 0 or more")
    spark = session_of(args, f"lakelens train {args.table}") if needs_spark else None
    options = {} if args.checkpoint_dir is None else {"checkpoint_dir": args.checkpoint_dir}
    result = train(
        args.table,
        version=args.version,
        entrypoint=args.entrypoint,
        np=args.np,
        epochs=args.epochs,
        batch_size=args.batch_size,
        hyperparameters=named_values(args.hparam, "--hparam"),
        seed=args.seed,
        tracking_uri=args.tracking_uri,
        experiment_name=args.experiment,
        metric=args.metric,
        mode=args.mode,
        patience=args.patience,
        run_name=args.run_name,
        train_split=_split(args.train_split),
        validation_split=_split(args.validation_split),
        image_size=None if args.image_size is None else image_size(args.image_size),
        class_names=args.class_name or None,
        storage_options=key_values(args.storage_option, "--storage-option"),
        filters=named_values(args.filter, "--filter") or None,
        bad_rows=args.bad_rows,
        read_timeout_s=args.read_timeout_s,
        max_restarts=args.max_restarts,
        use_gpu=args.use_gpu,
        env=key_values(args.env, "--env"),
        slots_wait_s=args.slots_wait_s,
        stall_timeout_s=args.stall_timeout_s,
        driver_port=args.driver_port,
        spark=spark,
        **options,
        **column_names(args.column),
    )
    return {**dataclasses.asdict(result), "tracking_uri": without_password(result.tracking_uri)}


def _run_experiment(args: argparse.Namespace) -> dict[str, Any]:
    """Runs an experiment file."""
    from lakelens.tracking.runs import without_password
    from lakelens.training.configuration.experiment import ExperimentConfig
    from lakelens.training.experiment.dry_run import plan_of
    from lakelens.training.experiment.run_trial import run_trial

    _require_no_flags_beside(args, args.table, _BESIDE_A_FILE, "set the file's key instead, with --set KEY=VALUE")
    config = ExperimentConfig.read(args.table, args.set)
    strategy, data = config.resources.strategy, config.data
    needs_spark = strategy == "horovod_cluster" or is_table_name(data.table)
    if args.master or args.conf:
        if not needs_spark and strategy != "auto":
            raise _unused_session(args, f"resources.strategy {strategy}", ", or choose horovod_cluster")
        needs_spark = True
    spark = session_of(args, f"lakelens train {args.table}") if needs_spark else None
    if args.dry_run:
        return plan_of(config, spark)
    result = run_trial(config, spark=spark)
    return {**dataclasses.asdict(result), "tracking_uri": without_password(result.tracking_uri)}


def _unused_session(args: argparse.Namespace, what: str, way_out: str = "") -> InvalidArgumentError:
    given = f"--master {args.master}" if args.master else f"--conf {args.conf[0]}"
    return InvalidArgumentError(f"{given}: no Spark for {what}; leave it out{way_out}")


def resume_run(args: argparse.Namespace) -> dict[str, Any]:
    """Continues the run `args.resume`."""
    from lakelens.tracking.runs import resolve_tracking_uri, without_password
    from lakelens.training.experiment.config_record import read_config
    from lakelens.training.experiment.train import resume

    config, np = read_config(resolve_tracking_uri(args.tracking_uri), args.resume)
    needs_spark = np >= 0 or is_table_name(config.data.table)
    if not needs_spark and (args.master or args.conf):
        raise _unused_session(args, f"run {args.resume}, whose ranks are on the driver")
    spark = session_of(args, f"lakelens train --resume {args.resume}") if needs_spark else None
    result = resume(args.resume, tracking_uri=args.tracking_uri, spark=spark)
    return {**dataclasses.asdict(result), "tracking_uri": without_password(result.tracking_uri)}


def _require_no_flags_beside(args: argparse.Namespace, what: str, allowed: frozenset[str], way_out: str) -> None:
    """Refuses flags whose values are part of the experiment."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    usual = vars(parser.parse_args([]))
    for name in sorted(usual.keys() - allowed):
        if getattr(args, name) != usual[name]:
            raise InvalidArgumentError(f"--{name.replace('_', '-')} beside {what}: {way_out}")


def column_names(pairs: Sequence[str]) -> dict[str, Any]:
    """Reads `ROLE=NAME` flags as arguments of `train`.

    Raises:
        InvalidArgumentError: If a role is unknown.
    """
    names = key_values(pairs, "--column")
    for role in names:
        if role not in COLUMN_ROLES:
            raise InvalidArgumentError(f"--column {role}={names[role]}: roles are {', '.join(COLUMN_ROLES)}")
    return {f"{role}_column": name for role, name in names.items()}


def _split(name: str) -> str | None:
    return None if name == _NONE else name


def image_size(text: str) -> list[int]:
    """Reads `--image-size`: one side, or height and width.

    Raises:
        InvalidArgumentError: If it is neither.
    """
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.isascii() and side.isdecimal() for side in sides):
        raise InvalidArgumentError(f"--image-size {text}: give one side or HEIGHTxWIDTH, in pixels, as 224 or 240x320")
    return [int(side) for side in sides]


def named_values(pairs: Sequence[str], flag: str) -> dict[str, Any]:
    """Reads `NAME=VALUE` flags, each value as YAML.

    Raises:
        ConfigurationError: If a value is not YAML.
    """
    from lakelens.training.configuration.yaml_file import parse_value

    return {name: parse_value(text, f"{flag} {name}") for name, text in key_values(pairs, flag).items()}


def main() -> int:
    """Runs the job with the process's own flags."""
    return main_of(DESCRIPTION, add_arguments, run)


if __name__ == "__main__":
    sys.exit(main())
