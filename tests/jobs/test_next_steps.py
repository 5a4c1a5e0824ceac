"""What a person reads at the end of a command."""

from __future__ import annotations

import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lakelens.jobs.cli import build_parser
from lakelens.jobs.next_steps import closing_lines

pytestmark = pytest.mark.unit

TRAINED = {
    **{"run_id": "abc", "table": "/t/my photos", "version": 3, "best_epoch": 4, "epochs": 5, "seconds": 130.2},
    "metrics": {"val_loss": 0.25, "val_accuracy": 0.925},
}
FOUND = {
    **{"run_id": "abc", "table": "lake.birds.photos", "version": 3, "best_trial": 2, "metric": "val_loss"},
    **{"value": 0.1, "hyperparameters": {"learning_rate": 0.01}, "trials": {"completed": 3}, "seconds": 7.0},
}


@pytest.mark.parametrize(
    ("command", "result", "lines"),
    [
        (
            "etl photos tables/photos",
            {"version": 3, "stored": 20, "quarantined": 0, "skipped": 2},
            ["table tables/photos@3", "20 images stored, 2 known before", "next: lakelens train tables/photos@3"],
        ),
        (
            "etl photos tables/photos",
            {"version": 0, "stored": 20, "quarantined": 1, "skipped": 0},
            [
                "table tables/photos@0",
                "20 images stored, 1 in quarantine, 0 known before",
                "next: lakelens table quarantine tables/photos",
            ],
        ),
        (
            "train '/t/my photos' --tracking-uri sqlite:///m.db",
            TRAINED,
            [
                "run abc, trained on /t/my photos@3 in 2 min 10 s",
                "best epoch 4 of 5: val_loss 0.25, val_accuracy 0.925",
                "next: lakelens score runs:/abc '/t/my photos@3' /t/predictions --tracking-uri sqlite:///m.db",
            ],
        ),
        (
            "search run e.yaml",
            FOUND,
            [
                "search abc: 3 trials in 7 s",
                "best trial 2: val_loss 0.1 with learning_rate 0.01",
                "next: lakelens score search:abc lake.birds.photos@3 lake.birds.predictions",
            ],
        ),
        (
            "score runs:/abc photos p",
            {"version": 1, "table_version": 3, "scored": 5, "skipped": 2, "errors": 1},
            [
                "predictions p@1 of photos@3",
                "5 of 7 images scored, 1 with an error, 2 scored before",
                "next: lakelens evaluate runs:/abc photos@3 --predictions p",
            ],
        ),
        (
            "evaluate runs:/abc tables/photos@3",
            {"version": 3, "page": "/out/page.html", "accuracy": 0.5, "macro_f1": 0.25},
            [
                "page /out/page.html",
                "accuracy 0.5, macro_f1 0.25",
                "next: lakelens models promote runs:/abc photos",
            ],
        ),
        ("etl photos t --dry-run", {"dry_run": True, "version": 0}, []),
        ("etl photos t --stream", {"version": None}, []),
        ("runs", {"runs": []}, []),
    ],
)
def test_a_command_ends_with_what_it_made_its_numbers_and_the_next_command(
    command: str, result: dict[str, Any], lines: list[str]
) -> None:
    found = closing_lines(build_parser().parse_args(shlex.split(command)), result)
    assert found == lines
    for line in found[2:]:
        build_parser().parse_args(shlex.split(line)[2:])


def test_only_a_terminal_gets_the_lines(tmp_path: Path) -> None:
    code = """
import sys
from lakelens.jobs.command import run_command
from lakelens.jobs.cli import build_parser

def parsed():
    args = build_parser().parse_args(["etl", "photos", "t"])
    return lambda _: {"version": 0, "stored": 1, "quarantined": 0, "skipped": 0}, args

sys.exit(run_command(parsed))
"""
    ours, theirs = pty.openpty()
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=theirs, check=True, text=True)
    os.close(theirs)
    assert os.read(ours, 4096).decode().splitlines()[0] == "table t@0"
    os.close(ours)
    assert len(done.stdout.splitlines()) == 1
    piped = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert (piped.stdout, piped.stderr) == (done.stdout, "")
