"""Traces a prediction back to its origins, or a run forward to what it has scored (`lakelens trace`); without Spark."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from lakelens.errors import InvalidArgumentError
from lakelens.jobs.command import add_tracking_argument
from lakelens.locations import table_and_version

DESCRIPTION = "Trace a prediction to model, run, code, table version and image; or a run to what its model has scored."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the job's flags."""
    parser.add_argument(
        "predictions", nargs="?", metavar="PREDICTIONS[@VERSION]", help="predictions table: path or URI"
    )
    parser.add_argument("path", nargs="?", help="the image's value in the column `path`")
    parser.add_argument("--run", dest="run_id", metavar="RUN", help="trace this run forward instead")
    parser.add_argument(
        "--in",
        dest="search",
        action="append",
        default=[],
        metavar="PREDICTIONS",
        help="with --run: also search this table for its predictions (repeatable)",
    )
    add_tracking_argument(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Traces and returns what was found."""
    if (args.run_id is None) == (args.predictions is None and args.path is None):
        raise InvalidArgumentError("give a predictions table and a path, or --run RUN")
    from lakelens.jobs.run_lines import trace_lines

    result = _prediction(args) if args.run_id is None else _run(args)
    print("\n".join(trace_lines(result)))
    return result


def _prediction(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.inference.trace import as_facts, trace

    if args.path is None:
        raise InvalidArgumentError(f"{args.predictions}: give the path of an image too, as the column path has it")
    if args.search:
        raise InvalidArgumentError(f"--in {args.search[0]} goes with --run")
    traces = trace(args.predictions, args.path, tracking_uri=args.tracking_uri)
    return {
        "predictions": table_and_version(args.predictions)[0],
        "path": args.path,
        "traces": [as_facts(one) for one in traces],
    }


def _run(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.inference.trace import trace_run

    found = trace_run(args.run_id, search=args.search, tracking_uri=args.tracking_uri)
    return {
        "run": dataclasses.asdict(found.run.summary),
        "scored": [dataclasses.asdict(entry) for entry in found.recorded],
        "found": [dict(entry) for entry in found.found],
    }
