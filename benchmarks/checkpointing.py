"""What checkpoints cost, and what they save: MobileNetV2 on one rank, one checkpoint per epoch.

    python -m benchmarks.checkpointing [--photographs 2000] [--side 96] [--epochs 6] [--kill-every-s 60] [--json]

Three numbers. The share of the training's time that goes into writing a checkpoint after each epoch: median of the
writes over median of the epochs, the first one left out, in which TensorFlow traces. The restart: from the kill of the
rank to the end of the first step after it. Useful time: the steps of the training, at the pace of one that is not
disturbed, over what it takes when its rank is killed every X seconds; next to it what a model of that expects,
1 - (restart + half a checkpoint's period) / X.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

from . import photographs as photos
from .contender import Contender
from .harness import Aim, Report, above_zero, parser, positive, scratch, tell
from .notes import notes

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


def expected_useful(restart_s: float, period_s: float, every_s: float) -> float:
    """Expects a share of useful time: a kill costs a restart and, on average, half of the work since a checkpoint."""
    return max(0.0, 1 - (restart_s + period_s / 2) / every_s)


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


def worked(found: list[dict[str, Any]]) -> float:
    """Gives the seconds from the end of a training's first step to its end."""
    times = {entry["event"]: entry["time"] for entry in reversed(found)}
    return float(next(entry["time"] for entry in reversed(found) if entry["event"] == "ended") - times["first_step"])


def run(arguments: Any) -> Report:
    """Runs the benchmark."""
    from lakelens.training.experiment.train import train

    if arguments.epochs < 2:
        raise SystemExit("--epochs 1: the first epoch, in which TensorFlow traces, is left out; give 2 or more")
    settings = ("photographs", "side", "epochs", "kill_every_s", "repeats")
    report = Report("checkpointing", {name: getattr(arguments, name) for name in settings} | {"batch": BATCH})
    shares, undisturbed, useful, taken, expected = [], [], [], [], []
    with scratch(arguments.folder) as (kept, temporary):
        table = write_table(kept, temporary, arguments.photographs, arguments.side)
        for repeat in range(arguments.repeats):
            folder = temporary / f"undisturbed-{repeat}"
            epochs = history(train(experiment(table, folder, arguments.side, arguments.epochs)), "epoch_seconds")
            written = [entry["seconds"] for entry in notes(folder) if entry["event"] == "_write"]
            period_s = statistics.median(epochs) + statistics.median(written)
            shares.append(statistics.median(written) / period_s)
            undisturbed.append(worked(notes(folder)))
            tell(f"{repeat + 1}/{arguments.repeats} undisturbed: {undisturbed[-1]:.1f} s, share {shares[-1]:.4f}")
            folder = temporary / f"killed-{repeat}"
            kills = {
                "BENCHMARK_KILL_EVERY_S": str(arguments.kill_every_s),
                "BENCHMARK_KILLS": str(arguments.kills),
            }
            train(experiment(table, folder, arguments.side, arguments.epochs, **kills))
            useful.append(undisturbed[-1] / worked(notes(folder)))
            taken += (found := restarts(notes(folder)))
            if found:
                expected.append(expected_useful(statistics.median(found), period_s, arguments.kill_every_s))
            tell(f"{repeat + 1}/{arguments.repeats} killed {len(found)} times: useful {useful[-1]:.3f}")
    report.add("share of a checkpoint per epoch", "of the training's time", shares)
    report.aims.append(Aim("share of a checkpoint per epoch", statistics.median(shares), at_most=SHARE))
    report.add("useful time", "of the time with kills", useful)
    if taken:
        report.add("restart", "s", taken)
        report.add("useful time, expected", "1 - (restart + half period) / X", expected)
    else:
        report.notes.append(f"no kill: the training took less than --kill-every-s {arguments.kill_every_s:g}")
    return report


def write_table(kept: Path, temporary: Path, count: int, side: int) -> Path:
    """Makes photographs and ingests them at the side that is trained at."""
    made = photos.photographs(kept, count)
    table = temporary / f"table-{side}"
    tell(f"writing {table.name}")
    with Contender("benchmarks.feed:Tables", temporary / "tables.log", folder=str(temporary / "spark")) as writer:
        writer.call("write", source=str(made.folder), table=str(table), store="jpeg", size=side)
    return table


def main(argv: list[str] | None = None) -> int:
    """Runs the command."""
    flags = parser("What checkpoints cost, and what they save.", repeats=3)
    flags.add_argument("--photographs", type=positive, default=2000, help="how many rows")
    flags.add_argument("--side", type=positive, default=96, help="side of the images")
    flags.add_argument("--epochs", type=positive, default=6, help="epochs of each training")
    flags.add_argument("--kill-every-s", type=above_zero, default=60.0, help="seconds between kills")
    flags.add_argument("--kills", type=positive, default=50, help="largest number of kills")
    arguments = flags.parse_args(argv)
    run(arguments).show(arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
