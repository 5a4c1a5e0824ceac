"""Lists the runs of a store, shows one of them, and pauses or ends one (`lakelens experiments`)."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import Any

from lakelens.jobs.command import EXIT_DONE, EXIT_FAILED

DESCRIPTION = "List the runs of trainings; show, pause or kill one of them."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the actions and their flags."""
    _add_flags(parser, list_flags=True)
    parser.set_defaults(work=_list)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    show = actions.add_parser("show", help="show one run in full")
    show.add_argument("run_id", metavar="RUN", help="the run's id")
    _add_flags(show, list_flags=False)
    show.set_defaults(work=_show)
    for action, meaning in (("pause", "write a checkpoint and end"), ("kill", "end at once")):
        asked = actions.add_parser(action, help=f"ask a running training, wherever it runs, to {meaning}")
        asked.add_argument("run_id", metavar="RUN", help="the run's id")
        asked.add_argument("--wait-s", type=float, default=60.0, help="seconds to wait until it has ended")
        _add_flags(asked, list_flags=False)
        asked.set_defaults(work=_ask)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the chosen action and returns what it found."""
    result: dict[str, Any] = args.work(args)
    return result


def _add_flags(parser: argparse.ArgumentParser, *, list_flags: bool) -> None:
    # An action's flags do not undo what was given before its name.
    uri = None if list_flags else argparse.SUPPRESS
    parser.add_argument("--tracking-uri", default=uri, help="MLflow tracking URI; default: MLFLOW_TRACKING_URI")
    if list_flags:
        parser.add_argument("--experiment", default=None, help="only this MLflow experiment")
        parser.add_argument("--limit", type=int, default=100, help="list at most this many runs, the latest first")


def _list(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.jobs.run_lines import run_table
    from lakelens.tracking.run_listing import list_runs

    runs = list_runs(args.tracking_uri, args.experiment, args.limit)
    print("\n".join(run_table(runs)))
    return {"runs": [dataclasses.asdict(run) for run in runs]}


def _show(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.jobs.run_lines import run_page
    from lakelens.tracking.run_listing import show_run

    details = show_run(args.run_id, args.tracking_uri)
    print("\n".join(run_page(details)))
    return dataclasses.asdict(details)


def _ask(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.tracking.requests import ask

    run = ask(args.run_id, args.action, args.tracking_uri, args.wait_s)
    if run.state == "RUNNING":
        print(f"run {run.run_id} has not ended after {args.wait_s:g} s; the request stands", file=sys.stderr)
    return {**dataclasses.asdict(run), "exit_code": EXIT_FAILED if run.state == "RUNNING" else EXIT_DONE}
