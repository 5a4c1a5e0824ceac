"""Writes the report of a search (`lakelens report RUN`)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lakelens.jobs.command import add_tracking_argument

DESCRIPTION = "Write a page about a search: curves, hyperparameters, slots, and the best experiment."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the job's flags."""
    parser.add_argument("search", metavar="PARENT_RUN_OR_FOLDER", help="the search's MLflow run, or its folder")
    parser.add_argument(
        "--out",
        default=None,
        help="folder for report.html, the PNG files and best.yaml; default: `report` in the search's folder",
    )
    add_tracking_argument(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Writes the report and returns where it is."""
    from lakelens.search.report.write import BEST, REPORT_FOLDER, write_report
    from lakelens.tracking.run_listing import show_run
    from lakelens.tracking.runs import resolve_tracking_uri
    from lakelens.training.experiment.config_record import read_config
    from lakelens.training.experiment.run_folder import checkpoint_root

    folder = Path(args.search).expanduser()
    if not folder.is_dir():
        run_id = show_run(args.search, args.tracking_uri).summary.run_id
        config = read_config(resolve_tracking_uri(args.tracking_uri), run_id)
        folder = checkpoint_root(config.checkpoint_storage.path) / run_id
    page = write_report(folder, folder / REPORT_FOLDER if args.out is None else args.out)
    best = page.with_name(BEST)
    return {"page": str(page), "best": str(best) if best.exists() else None}
