"""Images/s of `lakelens.train` beside loops written by hand: a frozen MobileNetV2, one process and two ranks.

    python -m benchmarks.training [--sides 96 160] [--ranks 1 2] [--photographs 1000] [--repeats 3] [--json]

All train the same model (the Trial `Transfer` without augmentation) with the same optimizer on the same rows, stored as
JPEG at the side that is trained at, in batches of 32 over all ranks, on ranks that HorovodRunner starts. A value is the
rows over the median epoch, without the first one, in which TensorFlow traces.

- `lakelens`: an experiment, as `lakelens train` runs it.
- `memory`: `fit` on decoded arrays in memory. The limit: a feed that never makes the model wait.
- `tfrecord`: `fit` on TFRecord files, one part of them for each rank.
- `petastorm`: `fit` on Petastorm's converter, which wrote a copy before; in an environment with its own TensorFlow and
  Horovod where lakelens's has a pyarrow that Petastorm's reader does not work with (`benchmarks/peers.py`).

lakelens measures itself how long its feed has made the model wait; for every contender the report has the share by
which its epoch is longer than that of `memory` in the same repeat.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .checkpointing import BATCH, experiment, history, write_table
from .contender import Contender
from .harness import Aim, Report, interleave, parser, positive, scratch, tell
from .peers import petastorm_python

CONTENDERS = ("lakelens", "memory", "tfrecord", "petastorm")
_AIM, _WAIT = 0.97, 0.02
_SHUFFLE_ROWS = 1024
_FILES = 8
_MODEL = {"backbone": "MobileNetV2", "weights": "none", "flip": False, "shift": 0, "rotation": 0, "zoom": 0}


class Copies:
    """Writes the table's rows in the forms that the others read, once."""

    def __init__(self, table: str, folder: str) -> None:
        from .sparks import session

        self.table, self.folder = table, Path(folder)
        self.spark = session(self.folder / "copies")

    def petastorm(self) -> dict[str, Any]:
        """Lets Petastorm's converter write its copy; gives its files."""
        from petastorm.spark import SparkDatasetConverter, make_spark_converter

        cache = self.folder / "petastorm"
        self.spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, cache.as_uri())
        rows = self.spark.read.format("delta").load(self.table).select("image", "label").repartition(_FILES)
        self.converter = make_spark_converter(rows)
        return {"files": list(self.converter.file_urls)}

    def close(self) -> None:
        """Ends the session."""
        self.spark.stop()


class ByHand:
    """Runs `train_by_hand` on ranks of the contender's environment."""

    def train(self, ranks: int, **given: Any) -> dict[str, Any]:
        """Gives the seconds of each epoch."""
        from lakelens import HorovodRunner

        runner = HorovodRunner(np=-ranks, use_gpu=False, driver_log_verbosity="log_callback_only")
        return {"epochs": runner.run(train_by_hand, **given)}


def write_tfrecords(table: Path, folder: Path) -> int:
    """Writes the rows of a table to TFRecord files; gives their number."""
    import tensorflow as tf

    from .feed import _example

    images, labels = rows_of(table)
    folder.mkdir()
    for part in range(_FILES):
        with tf.io.TFRecordWriter(str(folder / f"{part}.tfrecord")) as writer:
            for image, label in zip(images[part::_FILES], labels[part::_FILES], strict=True):
                writer.write(_example(image, label))
    return len(images)


def rows_of(table: Path) -> tuple[list[bytes], list[int]]:
    """Reads the stored images and labels of a table."""
    import pyarrow.dataset as ds

    from lakelens.table import Table

    snapshot = Table.of(table).snapshot()
    places = [snapshot.file_location(number) for number in range(len(snapshot.files))]
    rows = ds.dataset(places, format="parquet").to_table(columns=["image", "label"])
    return rows["image"].to_pylist(), rows["label"].to_pylist()


def train_by_hand(source: str, table: str, folder: str, side: int, classes: int, epochs: int) -> list[float]:
    """Trains on one rank with `fit`; gives the seconds of each epoch."""
    from pathlib import Path

    import lakelens.hvd as hvd
    from benchmarks.epoch_clock import EpochClock
    from benchmarks.mobile_net import LOSS, build_transfer, optimizer

    hvd.init()
    seconds: list[float] = []
    rows, batches = dataset_of(source, Path(table), Path(folder), side, hvd.rank(), hvd.size())
    model = build_transfer(side, classes)
    model.compile(hvd.DistributedOptimizer(optimizer()), LOSS, metrics=["accuracy"])
    model.fit(
        batches,
        epochs=epochs,
        steps_per_epoch=-(-rows // BATCH),
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), EpochClock(seconds)],
        verbose=0,
    )
    return seconds


def dataset_of(source: str, table: Path, folder: Path, side: int, rank: int, size: int) -> tuple[int, Any]:
    """Gives the number of rows, and the endless batches of one rank."""
    import tensorflow as tf

    def decoded(encoded: Any) -> Any:
        image = tf.io.decode_jpeg(encoded, channels=3, dct_method="INTEGER_ACCURATE")
        return tf.cast(tf.ensure_shape(image, (side, side, 3)), tf.float32)

    images, labels = rows_of(table)
    rows, local = len(images), BATCH // size
    if source == "memory":
        import numpy as np

        pixels = np.stack([tf.io.decode_jpeg(image, channels=3).numpy() for image in images[rank::size]])
        arrays = tf.data.Dataset.from_tensor_slices((pixels, labels[rank::size]))
        shuffled = arrays.shuffle(_SHUFFLE_ROWS).repeat().batch(local, drop_remainder=True)
        return rows, shuffled.map(lambda batch, label: (tf.cast(batch, tf.float32), label)).prefetch(2)
    if source == "petastorm":
        return rows, _from_petastorm(folder, decoded, local, rank, size)
    features = {"image": tf.io.FixedLenFeature((), tf.string), "label": tf.io.FixedLenFeature((), tf.int64)}

    def read(record: Any) -> tuple[Any, Any]:
        row = tf.io.parse_single_example(record, features)
        return decoded(row["image"]), row["label"]

    files = [str(folder / "tfrecord" / f"{part}.tfrecord") for part in range(_FILES)][rank::size]
    parts = tf.data.Dataset.from_tensor_slices(files).shuffle(_FILES)
    records = parts.interleave(tf.data.TFRecordDataset, cycle_length=_FILES, num_parallel_calls=tf.data.AUTOTUNE)
    shuffled = records.shuffle(_SHUFFLE_ROWS).repeat()
    return rows, shuffled.map(read, num_parallel_calls=tf.data.AUTOTUNE).batch(local, drop_remainder=True).prefetch(2)


def _from_petastorm(folder: Path, decoded: Callable[[Any], Any], local: int, rank: int, size: int) -> Any:
    """Reads the converter's copy as `make_tf_dataset` does, on a rank that has no Spark."""
    import tensorflow as tf
    from petastorm import make_batch_reader
    from petastorm.tf_utils import make_petastorm_dataset

    files = json.loads((folder / "petastorm.json").read_text(encoding="utf-8"))
    reader = make_batch_reader(files, num_epochs=None, cur_shard=rank, shard_count=size, shuffle_row_groups=True)
    rows = make_petastorm_dataset(reader).unbatch()
    pairs = rows.map(lambda row: (decoded(row.image), row.label), num_parallel_calls=tf.data.AUTOTUNE)
    return pairs.batch(local, drop_remainder=True).prefetch(2)


def run(arguments: Any) -> Report:
    """Runs the benchmark."""
    if arguments.epochs < 2:
        raise SystemExit("--epochs 1: the first epoch, in which TensorFlow traces, is left out; give 2 or more")
    settings = ("photographs", "sides", "ranks", "epochs", "repeats")
    report = Report("training", {name: getattr(arguments, name) for name in settings} | {"batch": BATCH})
    with scratch(arguments.folder) as (kept, temporary):
        for side in arguments.sides:
            place = temporary / f"side-{side}"
            place.mkdir()
            table = write_table(kept, place, arguments.photographs, side)
            python = Path(sys.executable)
            with contextlib.ExitStack() as stack:
                if "tfrecord" in arguments.contenders:
                    write_tfrecords(table, place / "tfrecord")
                if "petastorm" in arguments.contenders:
                    python = _petastorms_python(kept, max(arguments.ranks))
                    _petastorms_copy(stack, table, place, python)
                for ranks in arguments.ranks:
                    _one_setting(report, arguments, place, table, side, ranks, python)
    return report


def _petastorms_python(kept: Path, ranks: int) -> Path:
    """Finds or makes the interpreter for Petastorm, with Horovod if several ranks train."""
    python = petastorm_python(kept)
    if ranks > 1 and python != Path(sys.executable):
        subprocess.run([python, "-m", "lakelens.horovod_build"], check=True, stdout=sys.stderr)
    return python


def _petastorms_copy(stack: contextlib.ExitStack, table: Path, place: Path, python: Path) -> None:
    """Lets the converter write its copy, which is there as long as the converter's process."""
    log = place / "copies.log"
    copies = Contender("benchmarks.training:Copies", log, python=python, table=str(table), folder=str(place))
    files = stack.enter_context(copies).call("petastorm")["files"]
    (place / "petastorm.json").write_text(json.dumps(files), encoding="utf-8")


def _one_setting(
    report: Report, arguments: Any, place: Path, table: Path, side: int, ranks: int, petastorms: Path
) -> None:
    rows, epochs, classes = arguments.photographs, arguments.epochs, 8
    waits: list[float] = []

    def with_lakelens(repeat: int) -> dict[str, float]:
        from lakelens.training.experiment.train import train

        config = experiment(table, place / f"lakelens-{ranks}-{repeat}", side, epochs)
        config["entrypoint"] = "lakelens.training.trials.transfer:Transfer"
        config["hyperparameters"] |= _MODEL
        config["checkpoint_policy"] = "none"
        config["resources"] |= {"slots_per_trial": ranks, "strategy": "horovod_local"}
        result = train(config)
        waited, computed = (history(result, f"{name}_seconds_rank0") for name in ("feed_wait", "compute"))
        waits.append(statistics.median(wait / (wait + step) for wait, step in zip(waited, computed, strict=True)))
        return {"images_s": rows / statistics.median(history(result, "epoch_seconds"))}

    def by_hand(source: str) -> Callable[[int], dict[str, float]]:
        def once(_: int) -> dict[str, float]:
            given = {"source": source, "table": str(table), "folder": str(place), "side": side}
            python = petastorms if source == "petastorm" else sys.executable
            with Contender("benchmarks.training:ByHand", place / "by_hand.log", python=python) as contender:
                taken = contender.call("train", ranks=ranks, **given, classes=classes, epochs=epochs)["epochs"]
            return {"images_s": rows / statistics.median(taken[1:])}

        return once

    measures = {name: with_lakelens if name == "lakelens" else by_hand(name) for name in arguments.contenders}
    tell(f"{side} px, {ranks} rank(s)")
    label = f"{side} px, {ranks} rank(s):"
    for name, values in interleave(arguments.repeats, measures, tell).items():
        report.add(f"{label} {name}", "images/s", values["images_s"])
    _compare(report, label)
    if waits:
        share = statistics.median(waits)
        report.aims.append(Aim(f"{label} share of its time that lakelens waited for the feed", share, at_most=_WAIT))


def _compare(report: Report, label: str) -> None:
    ours, limit = f"{label} lakelens", f"{label} memory"
    for name in CONTENDERS:
        other = f"{label} {name}"
        if other in report.series and limit in report.series and other != limit:
            share = 1 - report.compare(other, limit)
            report.facts[f"{other}: share by which its epoch is longer than that of memory"] = round(share, 4)
        if other in report.series and ours in report.series and name in ("tfrecord", "petastorm"):
            report.compare(ours, other)
    if ours in report.series and limit in report.series:
        report.aims.append(Aim(f"{ours} / memory", report.ratios[f"{ours} / {limit}"], at_least=_AIM))


def main(argv: list[str] | None = None) -> int:
    """Runs the command."""
    flags = parser("Images/s of lakelens train beside loops written by hand.", repeats=3)
    flags.add_argument("--photographs", type=positive, default=1000, help="how many rows")
    flags.add_argument("--sides", type=positive, nargs="+", default=[96, 160], help="sides of the images")
    flags.add_argument("--ranks", type=positive, nargs="+", default=[1, 2], help="numbers of ranks")
    flags.add_argument("--epochs", type=positive, default=4, help="epochs of each training")
    flags.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), help="who takes part")
    arguments = flags.parse_args(argv)
    run(arguments).show(arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
