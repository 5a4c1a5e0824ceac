"""What a command has made, its numbers and the next command, in three lines for a person at a terminal; pure."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from lakelens.locations import table_and_version
from lakelens.results import duration

Result = Mapping[str, Any]


def closing_lines(args: argparse.Namespace, result: Result) -> list[str]:
    """Returns what was made, the numbers that matter, and the next command; none for a command without a next step."""
    write = _WRITERS.get((args.command, getattr(args, "action", None)))
    if write is None or result.get("dry_run") or result.get("version", 0) is None:
        return []
    made, numbers, following = write(args, result)
    store = getattr(args, "tracking_uri", None)
    following += ["--tracking-uri", store] if store is not None else []
    return [made, numbers, f"next: {shlex.join(['lakelens', *following])}"]


def _etl(args: argparse.Namespace, result: Result) -> tuple[str, str, list[str]]:
    table = f"{args.table}@{result['version']}"
    quarantined = f", {result['quarantined']} in quarantine" if result["quarantined"] else ""
    numbers = f"{result['stored']} images stored{quarantined}, {result['skipped']} known before"
    following = ["table", "quarantine", args.table] if result["quarantined"] else ["train", table]
    return f"table {table}", numbers, following


def _train(args: argparse.Namespace, result: Result) -> tuple[str, str, list[str]]:
    table = f"{result['table']}@{result['version']}"
    numbers = f"best epoch {result['best_epoch']} of {result['epochs']}: {_metrics(result['metrics'])}"
    made = f"run {result['run_id']}, trained on {table} in {duration(result['seconds'])}"
    return made, numbers, ["score", f"runs:/{result['run_id']}", table, _beside(result["table"], "predictions")]


def _search(args: argparse.Namespace, result: Result) -> tuple[str, str, list[str]]:
    table, values = f"{result['table']}@{result['version']}", result["hyperparameters"]
    drawn = ", ".join(f"{name} {_number(value)}" for name, value in values.items())
    made = f"search {result['run_id']}: {sum(result['trials'].values())} trials in {duration(result['seconds'])}"
    numbers = f"best trial {result['best_trial']}: {result['metric']} {_number(result['value'])} with {drawn}"
    return made, numbers, ["score", f"search:{result['run_id']}", table, _beside(result["table"], "predictions")]


def _score(args: argparse.Namespace, result: Result) -> tuple[str, str, list[str]]:
    rows = result["scored"] + result["skipped"]
    errors = f", {result['errors']} with an error" if result["errors"] else ""
    numbers = f"{result['scored']} of {rows} images scored{errors}, {result['skipped']} scored before"
    table = f"{table_and_version(args.table)[0]}@{result['table_version']}"
    made = f"predictions {args.predictions}@{result['version']} of {table}"
    return made, numbers, ["evaluate", args.model, table, "--predictions", args.predictions]


def _evaluate(args: argparse.Namespace, result: Result) -> tuple[str, str, list[str]]:
    scores = {name: result[name] for name in ("accuracy", "macro_f1", "map50", "map") if result.get(name) is not None}
    made = f"page {result['page']}" if result.get("page") else f"evaluation in {result['artifacts']}"
    name = table_and_version(args.table)[0].rstrip("/").rpartition("/")[2]
    return made, _metrics(scores), ["models", "promote", args.model, name]


_WRITERS: dict[tuple[str, str | None], Callable[[argparse.Namespace, Result], tuple[str, str, list[str]]]] = {
    ("etl", None): _etl,
    ("train", None): _train,
    ("search", "run"): _search,
    ("search", "resume"): _search,
    ("score", None): _score,
    ("evaluate", None): _evaluate,
}


def _metrics(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {_number(value)}" for name, value in metrics.items())


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _beside(table: str, name: str) -> str:
    """Names a table next to another: in its folder or its schema."""
    if "/" not in table:
        return f"{table.rpartition('.')[0]}.{name}" if "." in table else name
    return f"{table.rstrip('/').rpartition('/')[0]}/{name}"
