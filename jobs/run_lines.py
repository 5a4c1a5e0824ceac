"""Runs and traces as lines of text; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from lakelens.inference.evaluation.result import EvaluationResult
from lakelens.results import duration
from lakelens.tracking.run_listing import RunDetails, RunSummary
from lakelens.tracking.runs import ORIGIN_TAG

_HEADINGS = ("RUN", "STATE", "TABLE", "ENTRY POINT", "METRIC", "STARTED", "TOOK", "JOB (ATTEMPT)")
_LONGEST_ENTRY = 40


def table_lines(rows: Sequence[Sequence[str]], right_from: int | None = None) -> list[str]:
    """Aligns rows of cells in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    first = len(widths) if right_from is None else right_from
    return [
        "  ".join(
            cell.ljust(width) if place < first else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def run_table(runs: Sequence[RunSummary]) -> list[str]:
    """Writes runs as a table with a heading, and below a failed one why it failed."""
    heading, *rows = table_lines([_HEADINGS, *(_cells(run) for run in runs)])
    lines = [heading]
    for run, row in zip(runs, rows, strict=True):
        lines.append(row)
        if run.failure:
            lines.append(f"    {run.failure.splitlines()[0][:160]}")
    return lines


def run_page(details: RunDetails) -> list[str]:
    """Writes all of one run."""
    run = details.summary
    facts = {
        "run": f"{run.run_id} ({run.name}) in experiment {run.experiment}",
        "state": run.state if not run.failure else f"{run.state}: {run.failure}",
        "table": _table(run.table, run.version),
        "rows": ", ".join(f"{split} {count}" for split, count in details.rows.items()),
        "entry point": run.entrypoint or "",
        "metric": _metric(run),
        "started": f"{run.started}, took {duration(run.seconds)}",
        "job": _job(run),
        "checkpoint": run.digest or "",
        "artifacts": details.artifacts,
        "reproduces": details.tags.get(ORIGIN_TAG, ""),
    }
    lines = [f"{name:<12} {value}" for name, value in facts.items() if value]
    lines += _block("parameters", details.params)
    lines += _block("metrics", {name: f"{value:.6g}" for name, value in details.metrics.items()})
    if details.scored:
        lines += ["", "scored"]
    for entry in details.scored:
        table = _table(entry.table, entry.table_version)
        lines.append(f"    {table} in {_table(entry.predictions, entry.version)}, {entry.scored_at}")
    return lines


def evaluation_lines(result: EvaluationResult) -> list[str]:
    """Writes an evaluation: its scores, next to those of the previous model, each class, and where the page is."""
    before = {} if result.other is None else result.other.scores
    rows: list[Sequence[str]] = [("", "MODEL", *(["BEFORE"] if before else []))]
    for name, value in result.evaluation.scores.items():
        rows.append((name, f"{value:.4f}", *([f"{before[name]:.4f}"] if name in before else [])))
    lines = table_lines(rows)
    classes = [
        {name: value for name, value in asdict(one).items() if name != "label"} for one in result.evaluation.classes
    ]
    if classes:
        heading = [{"name": "CLASS", "support": "ROWS"}.get(name, name.upper()) for name in classes[0]]
        lines += ["", *table_lines([heading, *(list(map(_value, one.values())) for one in classes)])]
    if result.comparison is not None:
        lines += ["", *result.comparison.sentences]
    return lines + [f"{name}: {place}" for name, place in (("page", result.page), ("in", result.artifacts)) if place]


def trace_lines(trace: Mapping[str, Any], indent: str = "") -> list[str]:
    """Writes nested facts, one per line; what is not known is left out."""
    lines = []
    for name, value in trace.items():
        if value is None or value in ({}, []):
            continue
        if isinstance(value, Mapping):
            lines += [f"{indent}{name}", *trace_lines(value, indent + "    ")]
        elif isinstance(value, list):
            lines.append(f"{indent}{name}")
            for entry in value:
                shown = (
                    trace_lines(entry, indent + "      ") if isinstance(entry, Mapping) else [f"{indent}      {entry}"]
                )
                lines += [f"{indent}    - {shown[0].lstrip()}", *shown[1:]]
        else:
            lines.append(f"{indent}{name:<18} {value}")
    return lines


def _cells(run: RunSummary) -> tuple[str, ...]:
    entry = run.entrypoint or ""
    if len(entry) > _LONGEST_ENTRY:  # its end matters most: file and class
        entry = f"…{entry[-_LONGEST_ENTRY + 1 :]}"
    table = _table(run.table, run.version).rstrip("/").rpartition("/")[2]
    started = f"{run.started[:16].replace('T', ' ')}Z"
    return run.run_id, run.state, table, entry, _metric(run), started, duration(run.seconds), _job(run)


def _job(run: RunSummary) -> str:
    return "" if run.job is None else f"{run.job} ({run.attempt})"


def _value(value: object) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _table(location: str | None, version: int | None) -> str:
    return "" if location is None else f"{location.rstrip('/')}@{version}"


def _metric(run: RunSummary) -> str:
    if run.metric is None:
        return ""
    return f"{run.metric} {'-' if run.value is None else f'{run.value:.4g}'}"


def _block(title: str, values: Mapping[str, str]) -> list[str]:
    if not values:
        return []
    width = max(map(len, values))
    return ["", title, *(f"    {name:<{width}}  {value}" for name, value in values.items())]
