"""Scores one version of an image table, or its new rows as a stream, with a tracked model (`lakelens score`)."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import TYPE_CHECKING, Any

from lakelens.errors import InvalidArgumentError
from lakelens.jobs.command import (
    add_model_argument,
    add_session_arguments,
    add_table_argument,
    add_tracking_argument,
    session_of,
)
from lakelens.locations import table_and_version

if TYPE_CHECKING:
    from lakelens.inference.scoring.score import ScoreResult

DESCRIPTION = "Score one version of an image table, or its new rows as a stream, with a tracked model."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the job's flags."""
    add_model_argument(parser)
    add_table_argument(parser)
    parser.add_argument("predictions", help="predictions table to write: path, URI or catalog.schema.table")
    parser.add_argument(
        "--split",
        default=None,
        help="only this split; default: all rows (evaluate takes test, for metrics on rows without training)",
    )
    parser.add_argument(
        "--strict", action="store_true", help="refuse a model whose class names, image size or table differ"
    )
    add_engine_argument(parser)
    add_column_arguments(parser)
    parser.add_argument(
        "--rows-per-commit",
        type=int,
        default=None,
        help="rows up to which a commit takes data files, at least one; default: about half a minute's",
    )
    streams = parser.add_argument_group("streams", "Score the rows that the table gets, each once.")
    streams.add_argument("--stream", action="store_true", help="score what no version's predictions have")
    streams.add_argument("--checkpoint", default=None, metavar="FOLDER", help="folder of this stream; required")
    streams.add_argument(
        "--start", default=None, help="first rows of a new stream: beginning (default), latest, or a version"
    )
    streams.add_argument(
        "--trigger-s",
        type=float,
        default=None,
        metavar="SECONDS",
        help="look at the table this often until interrupted; default: score the existing rows and end",
    )
    add_tracking_argument(parser)
    add_session_arguments(parser)


def add_engine_argument(parser: argparse.ArgumentParser) -> None:
    """Adds the flag that chooses what runs a model."""
    parser.add_argument(
        "--engine",
        default=None,
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
    """Runs the scoring or the stream and returns version and counts."""
    from lakelens.inference.scoring.score import score
    from lakelens.inference.scoring.stream import score_stream

    given = {
        name: getattr(args, name) for name in ("checkpoint", "start", "trigger_s") if getattr(args, name) is not None
    }
    if given and not args.stream:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise InvalidArgumentError(f"{flags}: for --stream alone; add that, or leave them out")
    if args.stream and args.checkpoint is None:
        raise InvalidArgumentError("--stream needs --checkpoint FOLDER, a folder for this stream alone")
    session = session_of(args, f"lakelens score {args.table}", "pyspark")
    named = (session, args.model, args.table, args.predictions)
    options: dict[str, Any] = {
        "split": args.split,
        "strict": args.strict,
        "rows_per_commit": args.rows_per_commit,
        "tracking_uri": args.tracking_uri,
        "engine": args.engine,
        **columns_of(args),
    }
    if args.stream:
        result = score_stream(*named, on_batch=_tell_batch, **given | options)
    else:
        result = score(*named, **options)
    return {"table": table_and_version(args.table)[0], "predictions": args.predictions, **dataclasses.asdict(result)}


def _tell_batch(so_far: ScoreResult) -> None:
    print(f"version {so_far.table_version}: {so_far.scored} scored, {so_far.errors} errors", file=sys.stderr)


if __name__ == "__main__":  # spark-submit jobs/score.py
    from lakelens.jobs.cli import main

    sys.exit(main(["score", *sys.argv[1:]]))
