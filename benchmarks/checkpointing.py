"""What checkpoints cost, and what they save: MobileNetV2 on one rank, one checkpoint per epoch.

    python -m benchmarks.checkpointing [--photographs 2000] [--side 96] [--epochs 6] [--kill-every-s 60] [--json]

Two numbers. The share of the training's time that goes into writing a checkpoint after each epoch: median of the
writes over median of the epochs, the first one left out, in which TensorFlow traces. The restart, in a training whose
rank is killed every X seconds: from the kill of the rank to the end of the first step after it.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from . import photographs as photos
from .harness import Report, above_zero, command, parser, positive, scratch, tell
from .notes import notes
from .sparks import write_table

SHARE = 0.035
BATCH = 32
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


def run(arguments: Any) -> Report:
    """Runs the benchmark."""
    from lakelens.training.experiment.train import train

    if arguments.epochs < 2:
        raise SystemExit("--epochs 1: the first epoch, in which TensorFlow traces, is left out; give 2 or more")
    settings = ("photographs", "side", "epochs", "kill_every_s", "repeats")
    report = Report.of("checkpointing", arguments, *settings, batch=BATCH)
    kills = {"BENCHMARK_KILL_EVERY_S": str(arguments.kill_every_s), "BENCHMARK_KILLS": str(arguments.kills)}
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
            train(experiment(table, folder, arguments.side, arguments.epochs, **kills))
            taken += (found := restarts(notes(folder)))
            tell(f"{repeat + 1}/{arguments.repeats}: share {shares[-1]:.4f}, killed {len(found)} times")
    report.add("share of a checkpoint per epoch", "of the training's time", shares)
    report.aim("share of a checkpoint per epoch", statistics.median(shares), at_most=SHARE)
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
    flags.add_argument("--kills", type=positive, default=50, help="largest number of kills")
    command(flags, run)
