"""A detector on digits pasted on photographs: how good after how long, and images/s beside a plain Keras loop.

    python -m benchmarks.detection [--images 2000] [--held-out 300] [--side 192] [--epochs 15] [--ranks 2] [--json]
    python -m benchmarks.detection --search-trials 12 [--search-epochs 9]

Scenes are written as Pascal VOC and ingested. The Trial `Detector` trains on them, with the backbone `small` from
random weights. Average precision is that of the held-out scenes, whose digits no training scene shows, at the best
epoch.
`plain` is `fit` of the same model on the same scenes, decoded in memory, with the same augmentation on tf.data, in one
process; its images/s are compared with those of `lakelens` in one process, each without the first epoch. `plain` pads
boxes to the fullest scene of the table, lakelens to that of the batch.
With `--search-trials` a search over learning rate and weight of the boxes runs on two slots instead, and its best trial
is compared with a training of as many epochs with the defaults.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .checkpointing import history
from .contender import Contender
from .harness import Aim, Report, interleave, parser, positive, scratch, tell
from .sparks import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH = 16
_AIM_50, _AIM, _SECONDS, _AIM_SPEED = 0.85, 0.60, 600.0, 0.95
# A digit that is mirrored is another sign.
_HYPERPARAMETERS = {"global_batch_size": BATCH, "flip": False}


def write_table(spark: SparkSession, folder: Path, images: int, held_out: int, side: int, seed: int = 1) -> Path:
    """Writes scenes and ingests them; gives the table."""
    from lakelens.etl.image_table import ImageTable
    from lakelens.jobs.demo.digit_scenes import DigitScenes, write_voc

    source, table = folder / "scenes", folder / "table"
    write_voc(source, DigitScenes(held_out=False, seed=seed, side=side), images, "train")
    write_voc(source, DigitScenes(held_out=True, seed=seed + 1, side=side), held_out, "val")
    result = ImageTable(spark, str(table)).ingest(str(source), layout="voc", size=side)
    tell(f"ingested {result.stored} scenes")
    return table


def experiment(table: Path, folder: Path, *, epochs: int, ranks: int, **hyperparameters: Any) -> dict[str, Any]:
    """Describes the training."""
    folder.mkdir()
    return {
        "name": folder.name,
        "task": "detection",
        "entrypoint": "lakelens.training.trials.detector:Detector",
        "data": {"table": str(table)},
        "hyperparameters": _HYPERPARAMETERS | hyperparameters,
        "searcher": {"metric": "val_map50", "max_length": {"epochs": epochs}},
        "min_validation_period": {"epochs": min(5, epochs)},
        "optimizations": {"warmup_epochs": 0.5},
        "resources": {"use_gpu": False, "slots_per_trial": ranks, "strategy": "horovod_local"},
        "checkpoint_storage": {"path": str(folder / "checkpoints")},
        "tracking": {"uri": f"sqlite:///{folder}/mlflow.db"},
    }


class Plain:
    """`fit` of the same model on decoded scenes in memory, in a separate process."""

    def train(self, table: str, epochs: int) -> dict[str, Any]:
        """Gives the seconds of each epoch."""
        import numpy as np
        import tensorflow as tf

        from benchmarks.epoch_clock import EpochClock
        from lakelens.training.feed.feed import DeltaFeed
        from lakelens.training.tasks.detection import Detection
        from lakelens.training.trials.context import TrialContext
        from lakelens.training.trials.detector import Detector

        feed = DeltaFeed(table, split="train", label_column=None)
        task = Detection(feed.class_names or ())
        batches = list(feed.as_numpy(BATCH, 0, 1, dtype="uint8", **task.feed_options))
        images = np.concatenate([batch[0] for batch in batches])
        most = max(batch[1].shape[1] for batch in batches)
        boxes = np.concatenate([_as_wide(batch[1], most) for batch in batches])
        given = {name: value for name, value in _HYPERPARAMETERS.items() if name != "global_batch_size"}
        context = TrialContext(hyperparameters=given, task=task, image_size=feed.stored_size, global_batch_size=BATCH)
        trial = Detector(context)
        model = trial.build_model()
        rows = tf.data.Dataset.from_tensor_slices((images, boxes)).shuffle(len(images)).batch(BATCH).enumerate()
        changed = rows.map(
            lambda number, row: trial.preprocess(
                tf.cast(row[0], tf.float32), row[1], tf.stack([0, tf.cast(number, tf.int32)])
            ),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
        seconds: list[float] = []
        model.fit(changed.prefetch(2), epochs=epochs, callbacks=[EpochClock(seconds)], verbose=0)
        return {"epochs": seconds}


def _as_wide(boxes: Any, most: int) -> Any:
    import numpy as np

    more = np.zeros((len(boxes), most - boxes.shape[1], boxes.shape[2]), boxes.dtype)
    more[..., 4] = -1
    return np.concatenate([boxes, more], axis=1)


def measure_quality(report: Report, table: Path, folder: Path, epochs: int, ranks: int) -> Any:
    """Trains to the end; adds what was reached and how long it took."""
    from lakelens.training.experiment.train import train

    started = time.perf_counter()
    result = train(experiment(table, folder, epochs=epochs, ranks=ranks))
    seconds = time.perf_counter() - started
    report.facts["metrics of the held-out scenes"] = {name: round(v, 4) for name, v in result.metrics.items()}
    report.facts["seconds from the call to the recorded run"] = round(seconds, 1)
    report.aims += [
        Aim("mAP@0.5", result.metrics["val_map50"], at_least=_AIM_50),
        Aim("COCO mAP", result.metrics["val_map"], at_least=_AIM),
        Aim("seconds", seconds, at_most=_SECONDS),
    ]
    return result


def measure_scoring(report: Report, table: Path, folder: Path, result: Any) -> None:
    """Adds rows/s of a scoring of all scenes with the trained detector, Spark's workers started before."""
    from lakelens.inference.scoring.score import score

    spark = session(folder)
    try:
        for split in ("validation", "train"):  # the first starts the workers, which import TensorFlow
            started = time.perf_counter()
            where = {"split": split, "tracking_uri": f"sqlite:///{folder}/mlflow.db"}
            scored = score(spark, f"runs:/{result.run_id}", str(table), str(folder / "predictions"), **where)
            seconds = time.perf_counter() - started
        report.add("score", "rows/s", [scored.scored / seconds])
    finally:
        spark.stop()


def measure_speed(report: Report, arguments: Any, table: Path, folder: Path) -> None:
    """Adds images/s in one process beside the plain loop."""
    from lakelens.training.experiment.train import train

    def ours(repeat: int) -> dict[str, float]:
        config = experiment(table, folder / f"speed-{repeat}", epochs=arguments.speed_epochs, ranks=1)
        config["data"] |= {"validation_split": None}
        config["searcher"]["metric"], config["checkpoint_policy"] = "loss", "none"
        return {"images_s": arguments.images / statistics.median(history(train(config), "epoch_seconds"))}

    def plain(_: int) -> dict[str, float]:
        with Contender("benchmarks.detection:Plain", folder / "plain.log") as contender:
            taken = contender.call("train", table=str(table), epochs=arguments.speed_epochs)["epochs"]
        return {"images_s": arguments.images / statistics.median(taken[1:])}

    for name, values in interleave(arguments.repeats, {"lakelens": ours, "plain": plain}, tell).items():
        report.add(name, "images/s", values["images_s"])
    report.compare("lakelens", "plain", at_least=_AIM_SPEED)


def search_experiment(table: Path, folder: Path, *, trials: int, epochs: int) -> dict[str, Any]:
    """Describes a search on two slots; the defaults lie within its space."""
    spaces = {
        "learning_rate": {"type": "log", "base": 10, "minval": -3.5, "maxval": -2.3},
        "box_weight": {"type": "log", "base": 2, "minval": -1, "maxval": 3},
    }
    config = experiment(table, folder, epochs=epochs, ranks=1, **spaces)
    config["searcher"] |= {"name": "adaptive_asha", "metric": "val_map", "max_trials": trials, "divisor": 3}
    config["resources"] = {"use_gpu": False, "max_slots": 2}
    return config


def measure_search(report: Report, arguments: Any, table: Path, folder: Path) -> None:
    """Adds the best trial of a search beside a training with the defaults."""
    from lakelens.search.running.run import search
    from lakelens.training.experiment.train import train

    trials, epochs = arguments.search_trials, arguments.search_epochs
    started = time.perf_counter()
    found = search(search_experiment(table, folder / "search", trials=trials, epochs=epochs))
    report.facts["search: seconds"] = round(time.perf_counter() - started, 1)
    report.facts["search: trials"] = dict(found.states)
    report.facts["search: best hyperparameters"] = dict(found.hyperparameters)
    config = experiment(table, folder / "defaults", epochs=epochs, ranks=1)
    config["searcher"]["metric"] = "val_map"
    defaults = train(config).metrics["val_map"]
    report.facts["search: COCO mAP of the defaults"] = round(defaults, 4)
    report.aims.append(Aim("COCO mAP of the search's best trial", found.value, at_least=defaults))


def run(arguments: Any) -> Report:
    """Runs the benchmark."""
    if arguments.speed_epochs < 2:
        raise SystemExit("--speed-epochs 1: the first epoch, in which TensorFlow traces, is left out; give 2 or more")
    settings = ("images", "held_out", "side", "epochs", "ranks", "repeats")
    report = Report("detection", {name: getattr(arguments, name) for name in settings} | {"batch": BATCH})
    with scratch(arguments.folder) as (_, temporary):
        spark = session(temporary)
        try:
            table = write_table(spark, temporary, arguments.images, arguments.held_out, arguments.side)
        finally:
            spark.stop()
        if arguments.search_trials:
            measure_search(report, arguments, table, temporary)
            return report
        result = measure_quality(report, table, temporary / "quality", arguments.epochs, arguments.ranks)
        measure_scoring(report, table, temporary / "quality", result)
        if not arguments.only_quality:
            measure_speed(report, arguments, table, temporary)
    return report


def main(argv: list[str] | None = None) -> int:
    """Runs the command."""
    flags = parser("A detector on digits: how good after how long, and images/s beside a plain Keras loop.", repeats=3)
    flags.add_argument("--images", type=positive, default=2000, help="scenes to train on")
    flags.add_argument("--held-out", type=positive, default=300, help="scenes to measure on")
    flags.add_argument("--side", type=positive, default=192, help="side of the scenes in pixels")
    flags.add_argument("--epochs", type=positive, default=15, help="epochs of the training that is measured")
    flags.add_argument("--speed-epochs", type=positive, default=3, help="epochs of each timed training")
    flags.add_argument("--ranks", type=positive, default=2, help="ranks of the training that is measured")
    flags.add_argument("--only-quality", action="store_true", help="leave the timed trainings out")
    flags.add_argument("--search-trials", type=positive, help="trials of a search, which runs instead")
    flags.add_argument("--search-epochs", type=positive, default=9, help="most epochs of a trial")
    arguments = flags.parse_args(argv)
    run(arguments).show(arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
