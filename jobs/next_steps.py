"""What a command has made, its numbers and the next command, in three lines for a person at a terminal."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lakelens.locations import table_and_version
from lakelens.results import duration

Result = Mapping[str, Any]
# What takes the flags of a session.
_ON_SPARK = ("score", "evaluate")


def closing_lines(args: argparse.Namespace, result: Result) -> list[str]:
    """Returns what was made, the numbers that matter, and the next command; none for a command without a next step."""
    command = args.command, getattr(args, "action", None)
    if result.get("dry_run"):
        plan = _PLANS.get(command)
        # The same command, for good.
        words = [word for word in args.words if word not in ("--dry-run", "--no-import")] if plan else []
        return [*plan(args, result), f"next: {shlex.join(['lakelens', *words])}"] if plan else []
    write = _WRITERS.get(command)
    if write is None or result.get("version", 0) is None:
        return []
    made, numbers, following = write(args, result)
    place = f"cd {shlex.quote(result['folder'])} && " if command[0] == "init" and following[0] == "train" else ""
    store, master = getattr(args, "tracking_uri", None), getattr(args, "master", None)
    following += ["--tracking-uri", store] if store is not None else []
    if following[0] in _ON_SPARK:
        following += ["--master", master] if master is not None else []
        following += [word for setting in args.conf for word in ("--conf", setting)]
    return [made, numbers, f"next: {place}{shlex.join(['lakelens', *following])}"]


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


def _init(args: argparse.Namespace, result: Result) -> tuple[str, str, list[str]]:
    numbers = f"{len(result['written'])} files written, {len(result['kept'])} kept"
    is_missing = "/" in args.table and "://" not in args.table and not Path(args.table).expanduser().exists()
    following = ["etl", args.source, args.table] if is_missing else ["train", "experiment.yaml"]
    return f"project {result['folder']}", numbers, following


def _plan_of_etl(args: argparse.Namespace, result: Result) -> list[str]:
    counts = ", ".join(f"{result[name]} {name}" for name in ("new", "changed", "known", "gone"))
    classes = f"; new classes: {', '.join(result['new_classes'])}" if result["new_classes"] else ""
    return [f"plan: {result['rows_in']} files of {args.source} into {args.table}", f"{counts}{classes}"]


def _plan_of_train(args: argparse.Namespace, result: Result) -> list[str]:
    rows = ", ".join(f"{split} {count}" for split, count in result["rows"].items())
    size = " x ".join(map(str, result["image_size"]))
    ranks = f"{result['ranks']} rank{'s' * (result['ranks'] != 1)}" if result["ranks"] else "a rank on every slot"
    return [
        f"plan: {result['entrypoint']} on {result['table']}@{result['version']} "
        f"(rows: {rows}; {result['classes']} classes; {size} pixels), {ranks}, {result['where']}",
        f"{result['steps']} steps of {result['global_batch_size']} images, {result['steps_per_epoch']} an epoch; "
        f"{result['metric'].rpartition(':')[0]} decides",
    ]


_PLANS: dict[tuple[str, str | None], Callable[[argparse.Namespace, Result], list[str]]] = {
    ("etl", None): _plan_of_etl,
    ("train", None): _plan_of_train,
}
_WRITERS: dict[tuple[str, str | None], Callable[[argparse.Namespace, Result], tuple[str, str, list[str]]]] = {
    ("etl", None): _etl,
    ("train", None): _train,
    ("search", "run"): _search,
    ("search", "resume"): _search,
    ("score", None): _score,
    ("evaluate", None): _evaluate,
    ("init", None): _init,
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
