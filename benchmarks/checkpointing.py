"""What checkpoints cost, and what they save: MobileNetV2 on one rank, one checkpoint per epoch.

Two numbers. The share of the training's time that goes into writing a checkpoint after each epoch: median of the
writes over median of the epochs, the first one left out, in which TensorFlow traces. The restart, in a training whose
rank is killed every X seconds: from the kill of the rank to the end of the first step after it.

With `--job-s`, a third one: the share of useful time of `lakelens train --job KEY` whose driver is killed every X
seconds and started again by the same command, as by a scheduler. Useful is the time of the undisturbed command without
its start. It is compared with what a restart and half a period of checkpoints cost: 1 - (restart + period / 2) / X.
Checkpoints are written every 10 seconds; where an epoch and a start take longer than X, no epoch would end.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from . import photographs as photos
from .harness import Report, above_zero, command, parser, positive, scratch, tell
from .notes import notes
from .sparks import write_table

BATCH, _PERIOD_S = 32, 10
_SHARE, _USEFUL = 0.035, 0.9
_MOST_RESTARTS = 1000


def experiment(table: Path, folder: Path, side: int, epochs: int, **environment: str) -> dict[str, Any]:
    """Describes the training: a checkpoint after each epoch, and nothing else that takes time."""
    folder.mkdir()
    return {
        "name": folder.name,
        "entrypoint": "benchmarks.mobile_net:MobileNet",
        "data": {"table": str(table), "train_split": None, "validation_split": None, "image_size": side},
        "hyperparameters": {"global_batch_size": BATCH},
        "searcher": {"metric": "loss", "max_length": {"epochs": epochs}},
        "resources": {"use_gpu": False, "env": {"BENCHMARK_FOLDER": str(folder), **environment}},
        "max_restarts": _MOST_RESTARTS,
        "checkpoint_policy": "all",
        "checkpoint_storage": {"path": str(folder / "checkpoints")},
        "tracking": {"uri": f"sqlite:///{folder}/mlflow.db"},
    }


def history(result: Any, metric: str) -> list[float]:
    """Reads a metric of each epoch of a run, the first one left out."""
    from lakelens.tracking.runs import open_client

    points = open_client(result.tracking_uri).get_metric_history(result.run_id, metric)
    return [point.value for point in points][1:]


def train_unsaved(
    config: dict[str, Any], entrypoint: str, ranks: int, **hyperparameters: Any
) -> tuple[list[float], float]:
    """Trains without checkpoints on ranks of this machine.

    Gives the seconds of each epoch but the first, and the share of them that rank 0 waited for the feed.
    """
    from lakelens.training.experiment.train import train

    config |= {"entrypoint": entrypoint, "checkpoint_policy": "none"}
    config["hyperparameters"] |= hyperparameters
    config["resources"] |= {"slots_per_trial": ranks, "strategy": "horovod_local"}
    result = train(config)
    waited, computed = (history(result, f"{part}_seconds_rank0") for part in ("feed_wait", "compute"))
    shares = [wait / (wait + step) for wait, step in zip(waited, computed, strict=True)]
    return history(result, "epoch_seconds"), statistics.median(shares)


def restarts(found: list[dict[str, Any]]) -> list[float]:
    """Finds what each restart took in the notes of a training, in seconds."""
    killed, taken = None, []
    for entry in found:
        if entry["event"] == "killed":
            killed = entry["time"]
        elif entry["event"] == "first_step" and killed is not None:
            taken.append(entry["time"] - killed)
            killed = None
    return taken


def driven(folder: Path, keys: dict[str, Any], kill_every_s: float | None) -> tuple[float, list[float], int]:
    """Runs a training by its command until it has finished; its driver is killed X seconds after each start.

    Returns the seconds of all calls, those from the start of each call to its first step, and the number of kills.
    """
    file = folder.with_suffix(".yaml")
    file.write_text(json.dumps(keys))  # JSON is YAML
    began, starts, kills = time.monotonic(), [], 0
    while True:
        called = time.time()
        process = subprocess.Popen(
            [sys.executable, "-m", "lakelens.jobs.cli", "train", str(file), "--job", folder.name],
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code = process.wait(kill_every_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            kills, code = kills + 1, None
        steps = [entry["time"] for entry in notes(folder) if entry["event"] == "first_step" and entry["time"] > called]
        starts += [steps[0] - called] if steps else []
        if code == 0:
            return time.monotonic() - began, starts, kills
        if code is not None:
            raise SystemExit(f"lakelens train ended with exit code {code}")


def run_job(arguments: Any) -> Report:
    """Measures the useful time of a job whose driver is killed."""
    settings = ("photographs", "side", "job_s", "kill_every_s", "repeats")
    report = Report.of("checkpointing of a job", arguments, *settings, batch=BATCH)
    useful: list[float] = []
    possible: list[float] = []
    with scratch(arguments.folder) as (kept, temporary):
        table = temporary / "table"
        write_table(photos.photographs(kept, arguments.photographs).folder, table, arguments.side)
        driven(temporary / "tried", experiment(table, temporary / "tried", arguments.side, 3), None)
        tried = [entry for entry in notes(temporary / "tried") if entry["event"] == "_write"]
        epoch_s = tried[-1]["time"] - tried[-2]["time"]
        epochs = max(2, round(arguments.job_s / epoch_s))
        steps = max(1, round(_PERIOD_S * (arguments.photographs / BATCH) / epoch_s))
        period: dict[str, Any] = {"min_checkpoint_period": {"batches": steps}}
        for repeat in range(arguments.repeats):
            folder = temporary / f"whole-{repeat}"
            whole, starts, _ = driven(folder, experiment(table, folder, arguments.side, epochs) | period, None)
            folder = temporary / f"job-{repeat}"
            taken, restarts_s, kills = driven(
                folder, experiment(table, folder, arguments.side, epochs) | period, arguments.kill_every_s
            )
            restart = statistics.median(restarts_s)
            useful.append((whole - starts[0]) / taken)
            possible.append(1 - (restart + _PERIOD_S / 2) / arguments.kill_every_s)
            tell(
                f"{repeat + 1}/{arguments.repeats}: {kills} kills, a restart takes {restart:.1f} s, "
                f"useful {useful[-1]:.3f} of {possible[-1]:.3f}"
            )
    report.add("useful time", "of the job's time", useful)
    report.add("possible", "of the job's time", possible)
    share = statistics.median(one / of for one, of in zip(useful, possible, strict=True))
    report.aim("useful time of what is possible", share, at_least=_USEFUL)
    return report


def run(arguments: Any) -> Report:
    """Runs the benchmark."""
    if arguments.job_s is not None:
        return run_job(arguments)
    from lakelens.training.experiment.train import train

    if arguments.epochs < 2:
        raise SystemExit("--epochs 1: the first epoch, in which TensorFlow traces, is left out; give 2 or more")
    settings = ("photographs", "side", "epochs", "kill_every_s", "repeats")
    report = Report.of("checkpointing", arguments, *settings, batch=BATCH)
    shares: list[float] = []
    taken: list[float] = []
    with scratch(arguments.folder) as (kept, temporary):
        table = temporary / "table"
        write_table(photos.photographs(kept, arguments.photographs).folder, table, arguments.side)
        for repeat in range(arguments.repeats):
            folder = temporary / f"undisturbed-{repeat}"
            epochs = history(train(experiment(table, folder, arguments.side, arguments.epochs)), "epoch_seconds")
            written = statistics.median(entry["seconds"] for entry in notes(folder) if entry["event"] == "_write")
            shares.append(written / (statistics.median(epochs) + written))
            folder = temporary / f"killed-{repeat}"
            every_s = str(arguments.kill_every_s)
            train(experiment(table, folder, arguments.side, arguments.epochs, BENCHMARK_KILL_EVERY_S=every_s))
            taken += (found := restarts(notes(folder)))
            tell(f"{repeat + 1}/{arguments.repeats}: share {shares[-1]:.4f}, killed {len(found)} times")
    report.add("share of a checkpoint per epoch", "of the training's time", shares)
    report.aim("share of a checkpoint per epoch", statistics.median(shares), at_most=_SHARE)
    if taken:
        report.add("restart", "s", taken)
    else:
        report.notes.append(f"no kill: the training took less than --kill-every-s {arguments.kill_every_s:g}")
    return report


if __name__ == "__main__":
    flags = parser(__doc__, repeats=3, photographs=2000)
    flags.add_argument("--side", type=positive, default=96, help="side of the images")
    flags.add_argument("--epochs", type=positive, default=6, help="epochs of each training")
    flags.add_argument("--kill-every-s", type=above_zero, default=60.0, help="seconds between kills")
    flags.add_argument("--job-s", type=above_zero, default=None, help="a job of this many seconds instead")
    command(flags, run)
