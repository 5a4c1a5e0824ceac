"""Trains a model on one version of an image table (`lakelens train`, or spark-submit)."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from lakelens.errors import InvalidArgumentError
from lakelens.jobs.command import add_session_arguments, key_values, main_of, session_of, version_value
from lakelens.locations import absolute, is_table_name

DESCRIPTION = "Train a model on one pinned version of an image table."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the job's flags."""
    parser.add_argument(
        "table", nargs="?", help="image table (path, URI or catalog.schema.table), or an experiment file (*.yaml)"
    )
    parser.add_argument(
        "--resume",
        default=None,
        metavar="RUN_ID",
        help="go on with a run that failed or was interrupted",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a key of the experiment file, as a.b=VALUE"
    )
    parser.add_argument("--dry-run", action="store_true", help="print what the experiment file leads to, start nothing")
    parser.add_argument("--version", default="latest", help="version number, timestamp, pin or latest")
    parser.add_argument(
        "--entrypoint",
        default="lakelens.training.trials.small_cnn:SmallCnn",
        help="the Trial: module:Class or path/to/file.py:Class",
    )
    parser.add_argument(
        "--np", type=int, default=-1, help="ranks: negative on the driver, positive as Spark tasks, 0 every slot"
    )
    parser.add_argument("--epochs", type=int, default=10, help="epochs at the most")
    parser.add_argument("--batch-size", type=int, default=64, help="images per step over all ranks")
    parser.add_argument("--hparam", action="append", default=[], metavar="NAME=VALUE", help="a hyperparameter; several")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and order")
    parser.add_argument("--tracking-uri", default=None, help="MLflow tracking URI; MLFLOW_TRACKING_URI when absent")
    parser.add_argument("--experiment", default="lakelens", help="MLflow experiment")
    parser.add_argument("--checkpoint-dir", default=None, help="folder that every rank can write")
    add_session_arguments(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the training and returns run id, version, checkpoint and metrics."""
    if (args.table is None) == (args.resume is None):
        raise InvalidArgumentError("give a table, an experiment file, or --resume RUN_ID")
    if args.resume is not None:
        return _resume(args)
    if args.table.endswith((".yaml", ".yml")):
        return _run_experiment(args)
    if args.set or args.dry_run:
        raise InvalidArgumentError(f"--set and --dry-run go with an experiment file (*.yaml), not with {args.table}")
    from lakelens.tracking.runs import without_password
    from lakelens.training.experiment.train import train

    needs_spark = args.np >= 0 or is_table_name(absolute(args.table))
    if not needs_spark and (args.master or args.conf):
        given = f"--master {args.master}" if args.master else f"--conf {args.conf[0]}"
        raise InvalidArgumentError(
            f"{given}: ranks on the driver (--np {args.np}) need no Spark; leave it out, or give --np 0 or more"
        )
    spark = session_of(args, f"lakelens train {args.table}") if needs_spark else None
    options = {} if args.checkpoint_dir is None else {"checkpoint_dir": args.checkpoint_dir}
    result = train(
        args.table,
        version=version_value(args.version),
        entrypoint=args.entrypoint,
        np=args.np,
        epochs=args.epochs,
        batch_size=args.batch_size,
        hyperparameters=hyperparameters(args.hparam),
        seed=args.seed,
        tracking_uri=args.tracking_uri,
        experiment_name=args.experiment,
        spark=spark,
        **options,
    )
    return {**dataclasses.asdict(result), "tracking_uri": without_password(result.tracking_uri)}


def _run_experiment(args: argparse.Namespace) -> dict[str, Any]:
    """Runs an experiment file."""
    from lakelens.tracking.runs import without_password
    from lakelens.training.configuration.experiment import ExperimentConfig
    from lakelens.training.experiment.dry_run import plan_of
    from lakelens.training.experiment.run_trial import run_trial

    _require_no_flags_beside(args)
    config = ExperimentConfig.read(args.table, args.set)
    on_executors = config.resources.strategy == "horovod_cluster" or is_table_name(config.data.table)
    needs_spark = on_executors or bool(args.master or args.conf)
    spark = session_of(args, f"lakelens train {args.table}") if needs_spark else None
    if args.dry_run:
        return plan_of(config, spark)
    result = run_trial(config, spark=spark)
    return {**dataclasses.asdict(result), "tracking_uri": without_password(result.tracking_uri)}


def _resume(args: argparse.Namespace) -> dict[str, Any]:
    """Goes on with a run."""
    from lakelens.tracking.runs import resolve_tracking_uri, without_password
    from lakelens.training.experiment.config_record import read_config
    from lakelens.training.experiment.train import resume

    config, np = read_config(resolve_tracking_uri(args.tracking_uri), args.resume)
    needs_spark = np >= 0 or is_table_name(config.data.table)
    spark = session_of(args, f"lakelens train --resume {args.resume}") if needs_spark else None
    result = resume(args.resume, tracking_uri=args.tracking_uri, spark=spark)
    return {**dataclasses.asdict(result), "tracking_uri": without_password(result.tracking_uri)}


def _require_no_flags_beside(args: argparse.Namespace) -> None:
    """Checks that flags which say what the file says are absent."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    usual = parser.parse_args([args.table])
    for name in (
        "version",
        "entrypoint",
        "np",
        "epochs",
        "batch_size",
        "hparam",
        "seed",
        "tracking_uri",
        "experiment",
        "checkpoint_dir",
    ):
        if getattr(args, name) != getattr(usual, name):
            flag = f"--{name.replace('_', '-')}"
            raise InvalidArgumentError(f"{flag} beside {args.table}: set the file's key instead, with --set KEY=VALUE")


def hyperparameters(pairs: Sequence[str]) -> dict[str, Any]:
    """Reads `NAME=VALUE` flags, each value as YAML.

    Raises:
        ConfigurationError: If a value is not YAML.
    """
    from lakelens.training.configuration.yaml_file import parse_value

    return {name: parse_value(text, f"--hparam {name}") for name, text in key_values(pairs, "--hparam").items()}


def main() -> int:
    """Runs the job with the process's own flags."""
    return main_of(DESCRIPTION, add_arguments, run)


if __name__ == "__main__":
    sys.exit(main())
