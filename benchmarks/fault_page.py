"""The table of `docs/faults.md`, written from the results of `benchmarks.faults`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results" / "faults.json"


def table() -> str:
    """Writes the Markdown table: a row for each fault, a column for each launcher, in the order of the results."""
    kept = json.loads(RESULTS.read_text(encoding="utf-8"))["results"]
    results = {(one["launcher"], one["fault"]): one for one in kept}
    launchers = list(dict.fromkeys(one["launcher"] for one in kept))
    lines = [f"| fault | {' | '.join(launchers)} |", "|---|" + "---|" * len(launchers)]
    for fault in dict.fromkeys(one["fault"] for one in kept):
        cells = [cell(results.get((launcher, fault))) for launcher in launchers]
        lines.append(f"| {'no fault' if fault == 'none' else fault} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(result: Mapping[str, Any] | None) -> str:
    """Says in a few words how a launcher met a fault."""
    if result is None:
        return "not run"
    ended, seconds = result["ended"], result["seconds"]
    if ended == "hangs":
        text = f"**hangs** (nothing after {seconds:g} s)"
    elif ended == "error":
        text = f"`{result['error']}` after {seconds:.1f} s, names {_listed(result['names'])}"
    elif ended == "ranks live on":
        text = f"**ranks live on** after {seconds:g} s"
    elif ended == "did not start":
        text = "did not start"
    elif result["fault"] == "none":
        text = ended
    else:
        text = f"{ended} after {seconds:.1f} s"
    if result["by_itself"]:
        text += " (a SIGKILL that the rank sent itself)"
    left = [f"{len(value)} {_kind(key, len(value))}" for key, value in result["left"].items() if value]
    return f"{text}; leaves {', '.join(left)}" if left else f"{text}; leaves nothing"


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words) or "nothing"


def _kind(plural: str, count: int) -> str:
    return plural if count != 1 else {"processes": "process", "ports": "port", "files": "file"}[plural]
