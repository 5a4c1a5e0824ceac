"""Trains a run again from its record alone and compares the results bit for bit (`lakelens reproduce`)."""

from __future__ import annotations

import argparse
from typing import Any

from lakelens.jobs.command import (
    EXIT_DONE,
    EXIT_FAILED,
    add_job_arguments,
    add_session_arguments,
    add_tracking_argument,
    job_of,
    session_of,
)

DESCRIPTION = "Train a run again from its record alone, and compare the results bit for bit."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the job's flags."""
    parser.add_argument("run_id", metavar="RUN", help="a finished run's id")
    add_tracking_argument(parser)
    parser.add_argument("--checkpoint-dir", help="folder for the new checkpoints; default: the original run's")
    add_job_arguments(parser)
    add_session_arguments(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Trains again; the result lists the differences, and the exit code is 1 if there are any."""
    from lakelens.training.experiment.reproduce import reproduce

    done = reproduce(
        args.run_id,
        tracking_uri=args.tracking_uri,
        checkpoint_dir=args.checkpoint_dir,
        spark=session_of(args, f"lakelens reproduce {args.run_id}"),
        job=job_of(args),
    )
    for change in done.environment:
        print(f"environment: {change}")
    if done.equal:
        print(f"run {done.result.run_id} equals run {done.origin} bit for bit: metrics, weights and optimizer")
    for difference in done.differences:
        print(f"differs from run {done.origin}: {difference}")
    return {
        "run_id": done.result.run_id,
        "origin": done.origin,
        "equal": done.equal,
        "differences": done.differences,
        "environment": done.environment,
        "exit_code": EXIT_DONE if done.equal else EXIT_FAILED,
    }
