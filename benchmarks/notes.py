"""What a rank of a benchmark notes, with its time, in the folder that the variable BENCHMARK_FOLDER names."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


def note(event: str, **values: float) -> None:
    """Adds a line to the notes, if `BENCHMARK_FOLDER` is set."""
    folder = os.environ.get("BENCHMARK_FOLDER")
    if folder:
        with Path(folder, "notes.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, "time": time.time(), **values}) + "\n")


def notes(folder: Path) -> list[dict[str, Any]]:
    """Reads the notes of a folder."""
    return [json.loads(line) for line in (folder / "notes.jsonl").read_text(encoding="utf-8").splitlines()]


def times(event: str) -> list[float]:
    """Gives the times of the events of a kind."""
    return [entry["time"] for entry in notes(Path(os.environ["BENCHMARK_FOLDER"])) if entry["event"] == event]
