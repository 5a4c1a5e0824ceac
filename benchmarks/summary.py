"""Writes the measured part of `docs/benchmark-tables.md` from the JSON objects that the benchmarks have printed.

python -m benchmarks.etl --json | tail -1 > benchmarks/results/etl.json      (and the others alike)
python -m benchmarks.summary
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .harness import rounded, write_between

BEGIN = "<!-- measured: python -m benchmarks.summary -->"
END = "<!-- end of measured -->"
RESULTS = Path(__file__).resolve().parent / "results"
DOCS = RESULTS.parent.parent / "docs"
_COMMAND = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)


def summary(results: Mapping[str, Mapping[str, Any]], order: Sequence[str]) -> str:
    """Writes the aims of all benchmarks as one table, and where and when each was measured as another."""
    names = sorted(results, key=lambda name: order.index(results[name]["benchmark"]))
    lines = ["| benchmark | compared | measured | aim | |", "|---|---|---|---|---|"]
    for name in names:
        lines += [_aim_row(results[name]["benchmark"], aim) for aim in results[name]["aims"]]
    lines += ["", "| file | measured on | with | load average |", "|---|---|---|---|"]
    return "\n".join([*lines, *(_origin_row(name, results[name]) for name in names)])


def _aim_row(benchmark: str, aim: Mapping[str, Any]) -> str:
    bounds = [f"{sign} {aim[key]:g}" for key, sign in (("at_least", "≥"), ("at_most", "≤")) if key in aim]
    verdict = "met" if aim["met"] else "**missed**"
    return f"| {benchmark} | {aim['name']} | {rounded(aim['value'], 3):g} | {' and '.join(bounds)} | {verdict} |"


def _origin_row(name: str, result: Mapping[str, Any]) -> str:
    here, load = result["machine"], result["load_average"]
    settings = ", ".join(f"{key} {value}" for key, value in result["settings"].items())
    machine = f"{result['started'][:10]}, {here['processor']}, {here['cores']} cores, Python {here['python']}"
    return f"| `{name}.json` | {machine} | {settings} | {load['before'][0]:.1f} to {load['after'][0]:.1f} |"


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Reads the results of a folder by their files' names: a benchmark may have been run in parts."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    return {name: value for name, value in found.items() if "aims" in value}


if __name__ == "__main__":
    flags = argparse.ArgumentParser(description="Write the measured part of docs/benchmark-tables.md.")
    flags.add_argument("--results", type=Path, default=RESULTS, help="folder of JSON files")
    flags.add_argument("--page", type=Path, default=DOCS / "benchmark-tables.md", help="page to write into")
    arguments = flags.parse_args()
    order = _COMMAND.findall(arguments.page.read_text(encoding="utf-8"))  # of the page's table of commands
    write_between(arguments.page, BEGIN, END, summary(read_results(arguments.results), order))
