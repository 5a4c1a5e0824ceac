"""A signal ends a command with one line and the shell's exit code, whatever it is doing; no process stays behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from child_processes import ending_with_this_process

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "etl"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "training"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "inference"))

from coloured_tables import coloured_table
from colours import colour_model, row, save, write_table
from etl_pictures import write_image
from leftovers import Watch
from mlflow_stores import put_store
from snapshots import open_snapshot

PATIENCE_S = 300.0
IMAGES = 120
INGEST = "etl photos table --size 64 --master local[2] --conf=spark.ui.enabled=false --conf=spark.driver.memory=1g"
JAVA, WORKER, RANK = "pyspark-shell", "pyspark.daemon", "lakelens-rank=0"  # parts of the commands of processes
# What a command says of work that takes long, such as a start, and every 30 s of a slow machine.
_PROGRESS = re.compile(r": [\d,]+ of [\d,]+ images\b|: starting (Spark|the ranks)\b")


@dataclass
class Ended:
    """How a command has ended: its exit code, as a shell gives it, and its lines."""

    code: int
    stdout: list[str]
    stderr: list[str]

    @property
    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.stdout[-1])
        return found


def run_until(
    folder: Path,
    argv: list[str],
    moment: Callable[[Watch, float], bool] = lambda watch, seconds: False,
    number: signal.Signals = signal.SIGINT,
    to_group: bool = True,
) -> Ended:
    """Runs a command and sends it a signal, as a terminal does, at a moment."""
    watch = Watch()
    environment = {**os.environ, **watch.env, "PYTHONPATH": str(Path(__file__).parents[3])}
    out, err = folder / "stdout", folder / "stderr"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        command = ending_with_this_process([sys.executable, "-m", "lakelens.jobs.cli", *argv])
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=stdout, stderr=stderr, start_new_session=True
        )
        started, was_sent = time.monotonic(), False
        while process.poll() is None and not was_sent:
            if moment(watch, time.monotonic() - started):
                was_sent = True
                (os.killpg if to_group else os.kill)(process.pid, number)
            time.sleep(0.02)
            assert time.monotonic() - started < PATIENCE_S
        code = process.wait(PATIENCE_S)
    deadline = time.monotonic() + 60
    while watch.processes() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert watch.processes() == []
    code = 128 - code if code < 0 else code
    said = [line for line in err.read_text().splitlines() if not _PROGRESS.search(line)]
    return Ended(code, out.read_text().splitlines(), said)


def runs(word: str) -> Callable[[Watch, float], bool]:
    return lambda watch, _: any(word in process for process in watch.processes())


def after(seconds: float) -> Callable[[Watch, float], bool]:
    return lambda _, passed: passed >= seconds


def assert_ended_by(ended: Ended, number: signal.Signals) -> None:
    assert ended.code == 128 + number, ended
    assert len(ended.stderr) <= 1, ended.stderr
    assert ended.result["error"] in ("KeyboardInterrupt", "Terminated", "TrainingPaused", "ScoringPaused")


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_signal_ends_an_ingest_whatever_it_does_and_the_next_completes_it(tmp_path: Path) -> None:
    for number in range(IMAGES):
        write_image(tmp_path / "photos" / f"class{number % 3}" / f"{number}.jpg", seed=number, width=600, height=500)
    ingest = INGEST.split()
    begun = run_until(tmp_path, ingest, after(1), signal.SIGTERM, to_group=False)
    assert (begun.code, len(begun.stderr) <= 1) == (143, True), begun
    assert_ended_by(run_until(tmp_path, ingest, runs(JAVA), signal.SIGINT), signal.SIGINT)
    assert_ended_by(run_until(tmp_path, ingest, runs(WORKER), signal.SIGTERM), signal.SIGTERM)
    done = run_until(tmp_path, [*ingest, "--verbose"])
    assert done.code == 0
    # The long test holds that a command is quiet without --verbose.
    assert any("WARN" in line or "resolving dependencies" in line for line in done.stderr), done.stderr
    assert done.result["stored"] + done.result["skipped"] == IMAGES
    assert open_snapshot(str(tmp_path / "table")).rows == IMAGES


@pytest.mark.long
@pytest.mark.tensorflow
@pytest.mark.timeout(900)
def test_a_signal_ends_a_training_whatever_it_does_and_a_paused_one_is_resumed(tmp_path: Path) -> None:
    coloured_table(tmp_path / "squares")
    put_store(tmp_path)
    store = ["--tracking-uri", "sqlite:///mlflow.db"]
    train = ["train", "squares", "--epochs", "2", "--global-batch-size", "16", *store]
    begun = run_until(tmp_path, train, after(1), signal.SIGTERM, to_group=False)
    assert (begun.code, len(begun.stderr) <= 1) == (143, True), begun
    paused = run_until(tmp_path, train, runs(RANK), signal.SIGINT)
    assert_ended_by(paused, signal.SIGINT)
    assert paused.result["error"] == "TrainingPaused"
    run = paused.result["message"].split()[1]
    assert run_until(tmp_path, ["train", "--resume", run, *store]).code == 0


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.tensorflow
def test_a_signal_ends_a_watch_after_its_part(tmp_path: Path) -> None:
    for first in range(0, 12, 4):
        write_table(tmp_path / "table", [row(number) for number in range(first, first + 4)])
    model = save(colour_model(), tmp_path / "models")
    flags = ["--watch", "0.1", "--rows-per-commit", "4", "--master", "local[2]", "--conf=spark.ui.enabled=false"]
    predictions = tmp_path / "predictions"
    watch = ["score", str(model.path), "table", str(predictions), *flags]
    ended = run_until(tmp_path, watch, lambda *_: any(predictions.glob("*.parquet")), signal.SIGTERM)
    assert_ended_by(ended, signal.SIGTERM)
    assert ended.result["error"] == "ScoringPaused"
    assert open_snapshot(str(predictions)).rows in (4, 8)
