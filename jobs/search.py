"""Searches for the best hyperparameters of an experiment file (`lakelens search experiment.yaml`)."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from lakelens.errors import InvalidArgumentError
from lakelens.jobs.command import add_session_arguments, add_set_argument, needs_spark, session_of

if TYPE_CHECKING:
    from lakelens.search import SearchResult
    from lakelens.training.configuration.experiment import ExperimentConfig

DESCRIPTION = "Search for the best hyperparameters: train many trials, and continue the good ones."

_COMMANDS = {
    "pause": "pause the trials of a search that another process runs, until --continue",
    "continue": "continue a search that was paused with --pause",
    "stop": "end a search that another process runs, with the best trial so far",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the job's flags."""
    parser.add_argument("experiment", nargs="?", help="experiment file (*.yaml)")
    add_set_argument(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--resume", metavar="PARENT_RUN", help="resume a search that was interrupted, failed or was killed"
    )
    for name, meaning in _COMMANDS.items():
        what.add_argument(f"--{name}", metavar="PARENT_RUN", help=meaning)
    parser.add_argument("--tracking-uri", default=None, help="MLflow tracking URI of PARENT_RUN")
    add_session_arguments(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Runs or resumes a search, or tells one that another process runs what to do."""
    from lakelens.search.running.run import resume, run
    from lakelens.tracking.requests import ask_search
    from lakelens.tracking.runs import resolve_tracking_uri
    from lakelens.training.configuration.experiment import ExperimentConfig
    from lakelens.training.experiment.config_record import read_config

    given = {name: getattr(args, name) for name in ("experiment", "resume", *_COMMANDS)}
    asked = {name: value for name, value in given.items() if value is not None}
    if len(asked) != 1:
        raise InvalidArgumentError(
            "give an experiment file, or one of --resume, --pause, --continue and --stop with the run of a search"
        )
    ((name, value),) = asked.items()
    if name != "experiment" and args.set:
        raise InvalidArgumentError(f"--set {args.set[0]} beside --{name}: a resumed search keeps its configuration")
    if name in _COMMANDS:
        ask_search(value, name, args.tracking_uri)  # type: ignore[arg-type]
        return {"run_id": value, "asked": name}
    if name == "resume":
        config = read_config(resolve_tracking_uri(args.tracking_uri), value)
        return _found(resume(value, tracking_uri=args.tracking_uri, spark=_session_of(args, config)))
    if args.tracking_uri is not None:
        raise InvalidArgumentError(f"--tracking-uri beside {value}: --set tracking.uri={args.tracking_uri}")
    config = ExperimentConfig.read(value, args.set)
    return _found(run(config, _session_of(args, config)))


def _session_of(args: argparse.Namespace, config: ExperimentConfig) -> Any:
    if args.master or args.conf or needs_spark(config):
        return session_of(args, f"lakelens search {config.name or ''}".strip())
    return None


def _found(result: SearchResult) -> dict[str, Any]:
    from lakelens.locations import without_password

    return {
        "run_id": result.run_id,
        "experiment_id": result.experiment_id,
        "tracking_uri": without_password(result.tracking_uri),
        "table": result.table,
        "version": result.version,
        "best_run": result.best_run,
        "best_trial": result.best_trial,
        "metric": result.metric,
        "value": result.value,
        "hyperparameters": dict(result.hyperparameters),
        "checkpoint": result.checkpoint,
        "digest": result.digest,
        "trials": dict(result.states),
        "seconds": result.seconds,
    }


if __name__ == "__main__":  # spark-submit jobs/search.py
    from lakelens.jobs.cli import main

    sys.exit(main(["search", *sys.argv[1:]]))
