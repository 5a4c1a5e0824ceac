"""Exports a recorded model for a server that does not have lakelens (`lakelens export`); without Spark."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from lakelens.jobs.command import add_model_argument, add_tracking_argument

DESCRIPTION = "Export a model as a TensorFlow SavedModel, an MLflow pyfunc or an ONNX file."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the job's flags."""
    add_model_argument(parser)
    parser.add_argument("--format", choices=("savedmodel", "pyfunc", "onnx"), default="savedmodel")
    parser.add_argument(
        "--out", required=True, metavar="PATH", help="folder to write, of onnx the file; must not exist"
    )
    add_tracking_argument(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the export and returns what was written."""
    from lakelens.inference.export.export import export_model

    result = export_model(args.model, args.out, format=args.format, tracking_uri=args.tracking_uri)
    return dataclasses.asdict(result)
