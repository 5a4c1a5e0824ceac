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
    parser.add_argument("table", help="image table: path, URI or catalog.schema.table")
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
