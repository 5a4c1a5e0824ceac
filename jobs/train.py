"""Trains a model on one version of an image table (`lakelens train`)."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import Any

from lakelens.errors import InvalidArgumentError
from lakelens.jobs.command import (
    add_job_arguments,
    add_session_arguments,
    add_set_argument,
    add_tracking_argument,
    job_of,
    needs_spark,
    session_of,
)

DESCRIPTION = "Train a model on one pinned version of an image table."

# Those of the experiment file, which would take long to import for each `--help`; a test compares them.
STRATEGIES = ("auto", "single", "mirrored", "horovod_local", "horovod_cluster")
# Flags that are arguments of `train`.
_ARGUMENTS = ("entrypoint", "slots_per_trial", "strategy", "epochs", "global_batch_size", "seed", "metric")
# Flags of a new training; a resumed run keeps its configuration.
_OF_A_NEW_RUN = ("set", "dry_run", "no_import", *_ARGUMENTS, "image_size", "job", "takeover", "from_start")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the job's flags."""
    parser.add_argument(
        "table",
        nargs="?",
        metavar="TABLE[@VERSION]|FILE",
        help="image table (path, URI or catalog.schema.table), or an experiment file (*.yaml)",
    )
    parser.add_argument("--resume", metavar="RUN_ID", help="continue a run that failed or was interrupted")
    parser.add_argument(
        "--dry-run", action="store_true", help="build and check the model, print the resolved plan; train nothing"
    )
    parser.add_argument("--no-import", action="store_true", help="with --dry-run: do not import the Trial")
    group = parser.add_argument_group("experiment", "Every flag sets a key of the experiment; --set sets any key.")
    add_set_argument(group)
    group.add_argument("--entrypoint", help="entrypoint: the Trial, module:Class or path/to/file.py:Class")
    group.add_argument("--slots-per-trial", type=int, help="resources.slots_per_trial: ranks; 0 takes every slot")
    group.add_argument("--strategy", choices=STRATEGIES, help="resources.strategy: where they run; auto by default")
    group.add_argument("--epochs", type=int, help="searcher.max_length: most epochs; 10 by default")
    group.add_argument(
        "--global-batch-size",
        type=int,
        help="hyperparameters.global_batch_size: images per step over all ranks; 64 by default",
    )
    group.add_argument("--seed", type=int, help="reproducibility.experiment_seed: of weights and order")
    group.add_argument("--metric", help="searcher.metric: decides; default: val_loss, or loss without validation")
    group.add_argument(
        "--image-size", metavar="SIDE|HEIGHTxWIDTH", help="data.image_size: pixels that images are resized to, as 224"
    )
    add_tracking_argument(group)
    add_job_arguments(parser)
    add_session_arguments(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the training and returns run id, version, checkpoint and metrics."""
    if (args.table is None) == (args.resume is None):
        raise InvalidArgumentError("give a table, an experiment file, or --resume RUN_ID")
    if args.resume is not None:
        for name in _OF_A_NEW_RUN:
            value = getattr(args, name)
            if value is not None and value is not False and value != []:
                flag = f"--{name.replace('_', '-')} cannot be combined with --resume {args.resume}"
                raise InvalidArgumentError(f"{flag}: a resumed run keeps its configuration")
        return resume_run(args)
    if args.no_import and not args.dry_run:
        raise InvalidArgumentError("--no-import is for --dry-run: a training imports its Trial")
    from lakelens.locations import without_password
    from lakelens.training.experiment.dry_run import plan_of
    from lakelens.training.experiment.run_trial import run_trial
    from lakelens.training.experiment.train import experiment_of

    config = experiment_of(
        args.table,
        **{name: getattr(args, name) for name in _ARGUMENTS},
        image_size=None if args.image_size is None else image_size(args.image_size),
        tracking_uri=args.tracking_uri,
        overrides=args.set,
    )
    strategy, asked = config.resources.strategy, bool(args.master or args.conf)
    if asked and strategy != "auto" and not needs_spark(config):
        raise _unused_session(args, f"resources.strategy {strategy}", ", or choose horovod_cluster")
    spark = session_of(args, f"lakelens train {args.table}") if asked or needs_spark(config) else None
    if args.dry_run:
        return plan_of(config, spark, imports=not args.no_import)
    result = run_trial(config, spark=spark, job=job_of(args))
    return {**dataclasses.asdict(result), "tracking_uri": without_password(result.tracking_uri)}


def _unused_session(args: argparse.Namespace, what: str, way_out: str = "") -> InvalidArgumentError:
    given = f"--master {args.master}" if args.master else f"--conf {args.conf[0]}"
    return InvalidArgumentError(f"{given}: no Spark for {what}; leave it out{way_out}")


def resume_run(args: argparse.Namespace) -> dict[str, Any]:
    """Continues the run `args.resume`."""
    from lakelens.locations import without_password
    from lakelens.training.experiment.config_record import read_config
    from lakelens.training.experiment.train import resume

    if (args.master or args.conf) and not needs_spark(read_config(args.tracking_uri, args.resume)):
        raise _unused_session(args, f"run {args.resume}, whose ranks are on the driver")
    session = session_of(args, f"lakelens train --resume {args.resume}")
    result = resume(args.resume, tracking_uri=args.tracking_uri, spark=session)
    return {**dataclasses.asdict(result), "tracking_uri": without_password(result.tracking_uri)}


def image_size(text: str) -> list[int]:
    """Reads `--image-size`: one side, or height and width."""
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.isascii() and side.isdecimal() for side in sides):
        raise InvalidArgumentError(f"--image-size {text}: give one side or HEIGHTxWIDTH, in pixels, as 224 or 240x320")
    return [int(side) for side in sides]


if __name__ == "__main__":  # spark-submit jobs/train.py
    from lakelens.jobs.cli import main

    sys.exit(main(["train", *sys.argv[1:]]))
