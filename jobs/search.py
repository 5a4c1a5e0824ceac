"""Searches for the best hyperparameters of an experiment file (`lakelens search`)."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakelens.errors import InvalidArgumentError
from lakelens.jobs.command import (
    add_action,
    add_job_arguments,
    add_session_arguments,
    add_set_argument,
    add_tracking_argument,
    job_of,
    needs_spark,
    session_of,
)
from lakelens.results import counted

if TYPE_CHECKING:
    from lakelens.search import SearchResult
    from lakelens.training.configuration.experiment import ExperimentConfig

DESCRIPTION = "Search for the best hyperparameters: train many trials, and continue the good ones."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the actions and their flags."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    text = "show how many trials a search trains for how long, before anything runs"
    preview = add_action(actions, "preview", text, _preview)
    started = add_action(actions, "run", "run the search of an experiment file", _run)
    for action in (preview, started):
        action.add_argument("experiment", help="experiment file (*.yaml)")
        add_set_argument(action)
    preview.add_argument("--seconds-per-epoch", type=float, help="of one trial on its slots; estimates slot hours")
    add_job_arguments(started)
    add_session_arguments(started)
    text = "resume a search that is paused, or was interrupted, failed or was killed"
    resumed = add_action(actions, "resume", text, _resume)
    paused = add_action(actions, "pause", "pause the trials of a search that another process runs", _ask)
    stopped = add_action(actions, "stop", "end a search that another process runs, with its best trial so far", _ask)
    for action in (resumed, paused, stopped):
        action.add_argument("run_id", metavar="RUN", help="the search's MLflow run")
        add_tracking_argument(action)
    add_session_arguments(resumed)
    text = "write a page about a search: curves, hyperparameters, slots, and the best experiment"
    report = add_action(actions, "report", text, _report)
    report.add_argument("search", metavar="RUN|FOLDER", help="the search's MLflow run, or its folder")
    report.add_argument(
        "--out", help="folder for report.html, the PNG files and best.yaml; default: `report` in the search's folder"
    )
    add_tracking_argument(report)


def _preview(args: argparse.Namespace) -> dict[str, Any]:
    """Prints how many trials of a search train for how long."""
    from lakelens.search.create import preview
    from lakelens.search.settings import require_space, searcher_section
    from lakelens.training.configuration.experiment import ExperimentConfig

    config, seconds = ExperimentConfig.read(args.experiment, args.set), args.seconds_per_epoch
    require_space(config)
    searcher, slots = config.searcher, config.resources.slots_per_trial
    unit, longest = searcher.max_length.unit, searcher.max_length.amount
    if seconds is not None and (unit != "epochs" or not 0 < seconds < float("inf")):
        raise InvalidArgumentError(
            f"--seconds-per-epoch {seconds:g} with searcher.max_length in {unit}: it must be above 0 and finite, and "
            "estimates lengths in epochs only"
        )
    ends = preview(searcher_section(config), config.hyperparameters)
    trials, total = sum(ends.values()), sum(length * count for length, count in ends.items())
    result: dict[str, Any] = {
        "searcher": searcher.name,
        "trials": trials,
        "unit": unit,
        "trials_by_length": {str(length): count for length, count in ends.items()},
        "total": total,
        "random_total": trials * longest,
    }
    if seconds is not None:
        result["slot_hours"] = round(total * seconds * slots / 3600, 3)
        result["random_slot_hours"] = round(trials * longest * seconds * slots / 3600, 3)
    mode = f", {searcher.mode}{', stop_once' * searcher.stop_once}" if searcher.name == "adaptive_asha" else ""
    direction = "smaller" if config.goal.mode == "min" else "larger"
    print(f"{searcher.name}{mode}: {counted(trials, 'trial')}, {config.goal.metric}, {direction} is better\n")
    print("\n".join(f"  {line}" for line in _lengths(ends, unit)))
    print(f"\nin all   {total:,} {unit}{_hours(result, 'slot_hours')}")
    if total < trials * longest:
        ratio = f": {trials * longest / total:.3g} times as much for the same number of trials"
        print(f"random   {trials * longest:,} {unit}{_hours(result, 'random_slot_hours')}{ratio}")
    print()
    return result


def _lengths(ends: Mapping[int, int], unit: str) -> list[str]:
    """Writes a line for each length: how many trials reach it, how many end there, and what is trained up to it."""
    from lakelens.jobs.run_lines import table_lines

    rows = [("LENGTH", "REACH IT", "END THERE", f"{unit.upper()} TRAINED")]
    before, running = 0, sum(ends.values())
    for length, count in ends.items():
        rows.append((f"{length:,}", f"{running:,}", f"{count:,}", f"{running * (length - before):,}"))
        before, running = length, running - count
    return table_lines(rows, right_from=0)


def _hours(result: Mapping[str, Any], key: str) -> str:
    return f", {result[key]:,.3g} slot hours" if key in result else ""


def _run(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.search.running.run import search
    from lakelens.training.configuration.experiment import ExperimentConfig

    config = ExperimentConfig.read(args.experiment, args.set)
    return _found(search(config, spark=_session_of(args, config), job=job_of(args)))


def _resume(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.search.running.run import resume
    from lakelens.tracking.run_listing import show_run
    from lakelens.tracking.runs import SEARCH_TAG
    from lakelens.training.experiment.config_record import read_config

    details = show_run(args.run_id, args.tracking_uri)
    if details.summary.state == "RUNNING" and SEARCH_TAG in details.tags:
        return _ask(args)
    config = read_config(args.tracking_uri, args.run_id)
    return _found(resume(args.run_id, tracking_uri=args.tracking_uri, spark=_session_of(args, config)))


def _ask(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.tracking.requests import ask_search

    ask_search(args.run_id, args.action, args.tracking_uri)
    return {"run_id": args.run_id, "asked": args.action}


def _report(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.search.report.write import BEST, REPORT_FOLDER, write_report
    from lakelens.tracking.run_listing import show_run
    from lakelens.training.experiment.config_record import read_config
    from lakelens.training.experiment.run_folder import checkpoint_root

    folder = Path(args.search).expanduser()
    if not folder.is_dir():
        run_id = show_run(args.search, args.tracking_uri).summary.run_id
        config = read_config(args.tracking_uri, run_id)
        folder = checkpoint_root(config.checkpoint_storage.path) / run_id
    page = write_report(folder, folder / REPORT_FOLDER if args.out is None else args.out)
    best = page.with_name(BEST)
    return {"page": str(page), "best": str(best) if best.exists() else None}


def _session_of(args: argparse.Namespace, config: ExperimentConfig) -> Any:
    if args.master or args.conf or needs_spark(config):
        return session_of(args, f"lakelens search {config.name or ''}".strip())
    return None


def _found(result: SearchResult) -> dict[str, Any]:
    from lakelens.locations import without_password

    found = {field.name: getattr(result, field.name) for field in dataclasses.fields(result) if field.repr}
    found |= {"tracking_uri": without_password(result.tracking_uri), "hyperparameters": dict(result.hyperparameters)}
    found["trials"], found["seconds"] = dict(found.pop("states")), found.pop("seconds")
    return found


if __name__ == "__main__":  # spark-submit jobs/search.py
    from lakelens.jobs.cli import main

    sys.exit(main(["search", *sys.argv[1:]]))
