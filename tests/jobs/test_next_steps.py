"""What a person reads at the end of a command."""

from __future__ import annotations

import os
import pty
import shlex
import subprocess
import sys

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
            "etl photos t",
            {"version": 3, "stored": 20, "quarantined": 0, "skipped": 2},
            ["table t@3", "20 images stored, 2 known before", "next: lakelens train t@3"],
        ),
        (
            "etl photos t",
            {"version": 0, "stored": 20, "quarantined": 1, "skipped": 0},
            ["table t@0", "20 images stored, 1 in quarantine, 0 known before", "next: lakelens table quarantine t"],
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
            "evaluate runs:/abc tables/photos@3",
            {"version": 3, "page": "/out/page.html", "accuracy": 0.5, "macro_f1": 0.25},
            ["page /out/page.html", "accuracy 0.5, macro_f1 0.25", "next: lakelens models promote runs:/abc photos"],
        ),
        (
            "score runs:/abc photos p --master local[2] --conf a=b",
            {"version": 1, "table_version": 3, "scored": 5, "skipped": 2, "errors": 1},
            [
                "predictions p@1 of photos@3",
                "5 of 7 images scored, 1 with an error, 2 scored before",
                "next: lakelens evaluate runs:/abc photos@3 --predictions p --master 'local[2]' --conf a=b",
            ],
        ),
        (
            "etl photos t --dry-run --size 9",
            {"dry_run": True, "rows_in": 3, "new": 2, "changed": 1, "known": 0, "gone": 0, "new_classes": ["cat"]},
            [
                "plan: 3 files of photos into t",
                "2 new, 1 changed, 0 known, 0 gone; new classes: cat",
                "next: lakelens etl photos t --size 9",
            ],
        ),
        (
            "train e.yaml --dry-run --no-import",
            {
                **{"dry_run": True, "entrypoint": "trial.py:Birds", "table": "/t", "version": 0, "ranks": 2},
                **{"rows": {"train": 309, "validation": 26}, "classes": 6, "image_size": [96, 128]},
                **{"steps": 50, "steps_per_epoch": 5, "global_batch_size": 64, "where": "driver"},
                "metric": "val_loss:min",
            },
            [
                "plan: trial.py:Birds on /t@0 (rows: train 309, validation 26; 6 classes; 96 x 128 pixels), "
                "2 ranks, driver",
                "50 steps of 64 images, 5 an epoch; val_loss decides",
                "next: lakelens train e.yaml",
            ],
        ),
        ("table repair t --dry-run", {"dry_run": True, "version": 0}, []),
        ("etl photos t --stream", {"version": None}, []),
        ("runs", {"runs": []}, []),
    ],
)
def test_a_command_ends_with_what_it_made_its_numbers_and_the_next_command(command, result, lines):
    args = build_parser().parse_args(shlex.split(command))
    args.words = shlex.split(command)
    found = closing_lines(args, result)
    assert found == lines
    for line in found[2:]:
        build_parser().parse_args(shlex.split(line)[2:])


def test_a_new_project_is_followed_by_its_training_or_first_by_its_table(tmp_path):
    result = {"folder": "/work/my project", "dry_run": False, "written": ["trial.py"], "kept": []}
    (tmp_path / "t").mkdir()
    for table, following in (
        (f"{tmp_path}/t", "cd '/work/my project' && lakelens train experiment.yaml"),
        (f"{tmp_path}/none", f"lakelens etl photos {tmp_path}/none"),
        ("lake.birds.photos", "cd '/work/my project' && lakelens train experiment.yaml"),
    ):
        args = build_parser().parse_args(["init", "my project", "--table", table])
        lines = closing_lines(args, result)
        assert lines == ["project /work/my project", "1 files written, 0 kept", f"next: {following}"]


def test_only_a_terminal_gets_the_lines(tmp_path):
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
