"""Promotes models, sets and finds their aliases, and shows when to train again (`lakelens models`)."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import Any

from lakelens.jobs.command import (
    Run,
    add_action,
    add_job_arguments,
    add_model_argument,
    add_session_arguments,
    add_table_argument,
    add_tracking_argument,
    job_of,
    session_of,
)
from lakelens.jobs.evaluate import add_split_arguments, split_of
from lakelens.jobs.score import add_column_arguments, add_engine_argument, columns_of
from lakelens.table import Table

DESCRIPTION = "Promote models, set and find their aliases, and show when to train again; MLflow does the rest."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the actions and their flags."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def add(name: str, text: str, run: Run) -> argparse.ArgumentParser:
        action = add_action(actions, name, text, run)
        add_tracking_argument(action)
        return action

    alias = add("alias", "set an alias to a version, if its files are those that its run wrote", _alias)
    alias.add_argument("version", metavar="MODEL/VERSION", help="models:/<name>/<version>")
    alias.add_argument("alias", help="the alias, such as champion")
    exists = add("exists", "show whether an alias of a model exists; a missing alias or model is not an error", _exists)
    exists.add_argument("name", help="the registered model; need not exist yet")
    exists.add_argument("alias", help="the alias, such as champion")
    _add_promotion(add("promote", "register a model and set an alias to it, if it is better", _promote))
    stale = add("stale", "show whether a table has changed enough to train the model again", _stale)
    stale.add_argument("name", help="the registered model; need not exist yet")
    add_table_argument(stale)
    stale.add_argument(
        "--min-new-rows", type=int, default=1, help="rows, added or changed, from which the model is stale"
    )
    stale.add_argument(
        "--max-drift", type=float, default=0.1, help="change of a class's share above which the model is stale"
    )
    add_session_arguments(stale)


def _add_promotion(action: argparse.ArgumentParser) -> None:
    add_model_argument(action)
    action.add_argument("name", help="the registered model; created if it does not exist")
    action.add_argument("--alias", default="champion", help="the alias")
    action.add_argument(
        "--if-better", metavar="METRIC", help="accuracy, macro_f1, ece, ...; of detectors map50, map, ..."
    )
    action.add_argument("--on", metavar="TABLE@VERSION", help="what both models are evaluated on")
    add_split_arguments(action)
    action.add_argument("--by", type=float, default=0.0, help="better by more than this; at least 0")
    action.add_argument(
        "--max-errors",
        type=float,
        default=0.01,
        metavar="SHARE",
        help="with --if-better: never promote a model that fails to score a larger share of the rows",
    )
    action.add_argument("--predictions", metavar="TABLE", help="predictions table that keeps the answers")
    add_engine_argument(action)
    add_column_arguments(action)
    add_job_arguments(action, follows=False)
    add_session_arguments(action)


def _alias(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.inference.model.registry import parse_version, set_alias

    version = set_alias(*parse_version(args.version), args.alias, args.tracking_uri)
    return {"model": version.uri, **dataclasses.asdict(version)}


def _exists(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.inference.model.registry import version_behind

    found = version_behind(args.name, args.alias, args.tracking_uri)
    return {
        "model": f"models:/{args.name}@{args.alias}",
        "exists": found is not None,
        "version": None if found is None else found.version,
    }


def _promote(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.inference.promotion import promote

    spark = None if args.if_better is None else session_of(args, f"lakelens models promote {args.name}")
    decided = promote(
        args.model,
        args.name,
        args.alias,
        spark=spark,
        if_better=args.if_better,
        on=args.on,
        split=split_of(args),
        by=args.by,
        max_errors=args.max_errors,
        predictions=args.predictions,
        engine=args.engine,
        tracking_uri=args.tracking_uri,
        job=job_of(args),
        **columns_of(args),
    )
    print(f"{decided.name} version {decided.version}: {decided.reason}", file=sys.stderr)
    return {"model": f"models:/{decided.name}@{decided.alias}", **dataclasses.asdict(decided)}


def _stale(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.inference.promotion import staleness

    found = staleness(
        args.name,
        args.table,
        min_new_rows=args.min_new_rows,
        max_drift=args.max_drift,
        tracking_uri=args.tracking_uri,
        spark=session_of(args, f"lakelens models stale {args.table}") if Table.of(args.table).is_name else None,
    )
    print(found.reason, file=sys.stderr)
    return dataclasses.asdict(found)
