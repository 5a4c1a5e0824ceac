"""Scores one version of an image table, or each version that comes, with a tracked model (`lakelens score`)."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import TYPE_CHECKING, Any

from lakelens.jobs.command import (
    add_job_arguments,
    add_model_argument,
    add_session_arguments,
    add_table_argument,
    add_tracking_argument,
    job_of,
    session_of,
)
from lakelens.locations import table_and_version

if TYPE_CHECKING:
    from lakelens.inference.scoring.score import ScoreResult

DESCRIPTION = "Score one version of an image table, or each version that comes, with a tracked model."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the job's flags."""
    add_model_argument(parser)
    add_table_argument(parser)
    parser.add_argument("predictions", help="predictions table to write: path, URI or catalog.schema.table")
    parser.add_argument(
        "--split", help="only this split; default: all rows (evaluate takes test, for metrics on rows without training)"
    )
    parser.add_argument(
        "--strict", action="store_true", help="refuse a model whose class names, image size or table differ"
    )
    add_engine_argument(parser)
    parser.add_argument(
        "--min-score",
        type=float,
        metavar="SCORE",
        help="write only boxes with at least this score, 0.05 to 1; `evaluate` names the best; default: all boxes",
    )
    add_column_arguments(parser)
    parser.add_argument(
        "--rows-per-commit",
        type=int,
        help="rows up to which a commit takes data files, at least one; default: about half a minute's",
    )
    parser.add_argument(
        "--watch",
        type=float,
        metavar="SECONDS",
        help="score each version that comes: look at the table this often until Ctrl-C or SIGTERM",
    )
    add_tracking_argument(parser)
    add_job_arguments(parser, follows=False)
    add_session_arguments(parser)


def add_engine_argument(parser: argparse.ArgumentParser) -> None:
    """Adds the flag that chooses what runs a model."""
    parser.add_argument(
        "--engine",
        choices=("onnxruntime",),
        help="run a Keras model in ONNX Runtime, with equal outputs and without TensorFlow on the workers",
    )


def add_column_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that name the columns of the image table."""
    columns = parser.add_argument_group("columns", "For tables that lakelens did not make.")
    columns.add_argument("--path-column", default="path", metavar="COLUMN", help="identifies a row")
    columns.add_argument("--image-column", default="image", metavar="COLUMN", help="the image file, binary")
    columns.add_argument("--label-column", default="label", metavar="COLUMN", help="the true class, if there is one")
    columns.add_argument(
        "--key",
        default="content_hash",
        metavar="COLUMN",
        help="column that changes with the image, such as a hash; lets `score` skip images scored in another version",
    )


def columns_of(args: argparse.Namespace) -> dict[str, Any]:
    """Gives what the flags of `add_column_arguments` say, as arguments of `score`, `evaluate` and `promote`."""
    return {name: getattr(args, name) for name in ("path_column", "image_column", "label_column", "key")}


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the scoring and returns version and counts; a watch ends by a signal or an error."""
    from lakelens.inference.scoring.score import score

    result = score(
        session_of(args, f"lakelens score {args.table}", "pyspark"),
        args.model,
        args.table,
        args.predictions,
        split=args.split,
        strict=args.strict,
        rows_per_commit=args.rows_per_commit,
        tracking_uri=args.tracking_uri,
        engine=args.engine,
        min_score=args.min_score,
        watch_s=args.watch,
        on_pass=None if args.watch is None else _tell_pass,
        job=job_of(args),
        **columns_of(args),
    )
    return {"table": table_and_version(args.table)[0], "predictions": args.predictions, **dataclasses.asdict(result)}


def _tell_pass(result: ScoreResult) -> None:
    print(f"version {result.table_version}: {result.scored} scored, {result.errors} errors", file=sys.stderr)


if __name__ == "__main__":  # spark-submit jobs/score.py
    from lakelens.jobs.cli import main

    sys.exit(main(["score", *sys.argv[1:]]))
