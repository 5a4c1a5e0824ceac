"""Evaluates a model on one version of an image table (`lakelens evaluate`)."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from lakelens.jobs.command import (
    add_model_argument,
    add_session_arguments,
    add_table_argument,
    add_tracking_argument,
    session_of,
)
from lakelens.jobs.score import add_column_arguments, add_engine_argument, columns_of

DESCRIPTION = "Evaluate a model on one version of an image table, alone or against another model."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the job's flags."""
    add_model_argument(parser)
    add_table_argument(parser)
    add_split_arguments(parser)
    parser.add_argument("--compare", metavar="MODEL", help="a model to compare with, such as the previous one")
    parser.add_argument(
        "--slice",
        action="append",
        default=[],
        dest="slices",
        metavar="COLUMN",
        help="also metrics by this column's values (repeatable)",
    )
    parser.add_argument(
        "--predictions", metavar="TABLE", help="table of predictions, as `score` writes it, to reuse and extend"
    )
    add_engine_argument(parser)
    add_column_arguments(parser)
    parser.add_argument("--out", default="lakelens-evaluation", help="folder for evaluation.html and its PNG files")
    parser.add_argument("--no-record", action="store_true", help="write nothing into the model's MLflow run")
    add_tracking_argument(parser)
    add_session_arguments(parser)


def add_split_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that choose the evaluated rows."""
    parser.add_argument(
        "--split", default="test", help="only this split (score takes all rows; metrics need rows without training)"
    )
    parser.add_argument("--all-splits", action="store_true", help="all rows, whatever their split")


def split_of(args: argparse.Namespace) -> str | None:
    """Gives what the flags of `add_split_arguments` say, as an argument of `evaluate` and `promote`."""
    return None if args.all_splits else str(args.split)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the evaluation and returns its numbers."""
    from lakelens.inference.evaluation.evaluate import evaluate
    from lakelens.jobs.run_lines import evaluation_lines

    result = evaluate(
        session_of(args, f"lakelens evaluate {args.table}", "pyspark"),
        args.model,
        args.table,
        split=split_of(args),
        compare=args.compare,
        slices=args.slices,
        predictions=args.predictions,
        out=args.out,
        record=not args.no_record,
        tracking_uri=args.tracking_uri,
        engine=args.engine,
        **columns_of(args),
    )
    print("\n".join(evaluation_lines(result)))
    return result.as_facts()


if __name__ == "__main__":  # spark-submit jobs/evaluate.py
    from lakelens.jobs.cli import main

    sys.exit(main(["evaluate", *sys.argv[1:]]))
