"""The aims of the benchmarks, and where each was measured, from the JSON objects that the benchmarks have printed.

    python -m benchmarks.etl --json | tail -1 > benchmarks/results/etl.json      (and the others alike)
    python -m benchmarks.summary

The site's page about benchmarks shows the same tables.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .harness import rounded

RESULTS = Path(__file__).resolve().parent / "results"


def tables() -> str:
    """Writes the aims of all benchmarks as one table, and where and when each was measured as another."""
    results = read_results()
    lines = ["| file | compared | measured | aim | |", "|---|---|---|---|---|"]
    for name, result in results.items():
        lines += [_aim_row(name, aim) for aim in result["aims"]]
    lines += ["", "| file | measured on | with | load average |", "|---|---|---|---|"]
    return "\n".join([*lines, *(_origin_row(name, result) for name, result in results.items())])


def _aim_row(name: str, aim: Mapping[str, Any]) -> str:
    bounds = [f"{sign} {aim[key]:g}" for key, sign in (("at_least", "≥"), ("at_most", "≤")) if key in aim]
    verdict = "met" if aim["met"] else "**missed**"
    return f"| `{name}.json` | {aim['name']} | {rounded(aim['value'], 3):g} | {' and '.join(bounds)} | {verdict} |"


def _origin_row(name: str, result: Mapping[str, Any]) -> str:
    here, load = result["machine"], result["load_average"]
    settings = ", ".join(f"{key} {value}" for key, value in result["settings"].items())
    machine = f"{result['started'][:10]}, {here['processor']}, {here['cores']} cores, Python {here['python']}"
    return f"| `{name}.json` | {machine} | {settings} | {load['before'][0]:.1f} to {load['after'][0]:.1f} |"


def read_results() -> dict[str, dict[str, Any]]:
    """Reads the kept results by their files' names: a benchmark may have been run in parts."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}
    return {name: value for name, value in found.items() if "aims" in value}


if __name__ == "__main__":
    argparse.ArgumentParser(description="Print the tables of the benchmarks' results, in Markdown.").parse_args()
    print(tables())
