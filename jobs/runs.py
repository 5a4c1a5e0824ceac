"""Lists the runs of a store; shows, pauses or ends one, and restores its code (`lakelens runs`)."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import Any

from lakelens.jobs.command import EXIT_DONE, EXIT_FAILED, add_action, add_tracking_argument

DESCRIPTION = "List the runs of trainings; show, pause or kill one of them, or restore its code."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the actions and their flags."""
    add_tracking_argument(parser)
    parser.add_argument("--experiment", help="only this MLflow experiment")
    parser.add_argument("--limit", type=int, default=100, help="list at most this many runs, the latest first")
    parser.set_defaults(run=_list)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    show = add_action(actions, "show", "show one run in full", _show)
    pause = add_action(
        actions, "pause", "ask a running training, wherever it runs, to write a checkpoint and end", _ask
    )
    kill = add_action(actions, "kill", "ask a running training, wherever it runs, to end at once", _ask)
    code = add_action(actions, "code", "write the code that a run has recorded into a folder", _code)
    for action in (show, pause, kill, code):
        action.add_argument("run_id", metavar="RUN", help="the run's id")
        # An action's default does not undo what was given before its name.
        add_tracking_argument(action, argparse.SUPPRESS)
    for action in (pause, kill):
        action.add_argument("--wait-s", type=float, default=60.0, help="seconds to wait until it has ended")
    code.add_argument("folder", metavar="FOLDER", help="folder to write; must not exist")


def _list(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.jobs.run_lines import run_table
    from lakelens.tracking.run_listing import runs

    found = runs(args.tracking_uri, args.experiment, args.limit)
    print("\n".join(run_table(found)))
    return {"runs": [dataclasses.asdict(run) for run in found]}


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


def _code(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.training.record.code_record import restore_code

    files = restore_code(args.run_id, args.folder, tracking_uri=args.tracking_uri)
    print("\n".join(map(str, files)))
    return {"run_id": args.run_id, "folder": args.folder, "files": [str(file) for file in files]}
