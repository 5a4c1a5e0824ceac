"""Images/s of `lakelens.train` beside loops written by hand: a frozen MobileNetV2, one process and two ranks.

All train the same model (the Trial `Transfer` without augmentation) with the same optimizer on the same rows, stored as
JPEG at the side that is trained at, in batches of 32 over all ranks, on ranks that HorovodRunner starts. A value is the
rows over the median epoch, without the first one, in which TensorFlow traces.

- `lakelens`: an experiment, as `lakelens train` runs it.
- `given back`: the same with the settings that glibc starts with, which give freed memory back to the kernel.
- `memory`: `fit` on decoded arrays in memory. The limit: a feed that never makes the model wait.
- `tfrecord`: `fit` on TFRecord files, one part of them for each rank.
- `petastorm`: `fit` on Petastorm's converter, which wrote a copy before; in an environment with its own TensorFlow and
  Horovod where lakelens's has a pyarrow that Petastorm's reader does not work with (`benchmarks/peers.py`).

lakelens measures itself how long its feed has made the model wait. The peak memory of a rank is that of one more
training, which is not timed.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from . import photographs as photos
from .checkpointing import BATCH, experiment, train_unsaved
from .contender import Contender
from .harness import Measure, Report, command, parser, positive, scratch, tell
from .memory import PeakMemory
from .peers import petastorm_python
from .sparks import stored_columns, write_table
from .tensorflow_rows import FILES, Converted, decode_jpeg, read_tfrecords, write_tfrecords

CONTENDERS = ("lakelens", "given back", "memory", "tfrecord", "petastorm")
_AIM, _WAIT = 0.97, 0.02
_SHUFFLE_ROWS = 1024
_UNITS = {"images_s": ("", "images/s"), "faults": (" page faults", "an image, with the start of the ranks")}
_TRIAL = "lakelens.training.trials.transfer:Transfer"
_MODEL = {"backbone": "MobileNetV2", "weights": "none", "flip": False, "shift": 0, "rotation": 0, "zoom": 0}
# Where the user has set the allocator, lakelens leaves it. Source of the values: mallopt(3).
_GLIBC = {
    "MALLOC_ARENA_MAX": str(8 * (os.cpu_count() or 1)),
    "MALLOC_MMAP_MAX_": "65536",
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "MALLOC_TRIM_THRESHOLD_": "131072",
}


class Copies(Converted):
    """Lets Petastorm's converter write its copy, which is there as long as this process."""

    def write(self, table: str) -> dict[str, Any]:
        """Gives the files of the copy."""
        return {"files": list(self.convert(table, FILES).file_urls)}


class ByHand:
    """Runs `train_by_hand` on ranks of the contender's environment."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def train(self, ranks: int, given: dict[str, Any]) -> dict[str, Any]:
        """Gives the seconds of each epoch."""
        from lakelens import HorovodRunner

        runner = HorovodRunner(np=-ranks, use_gpu=False, driver_log_verbosity="log_callback_only")
        return {"epochs": runner.run(train_by_hand, **given)}


def train_by_hand(source: str, table: str, folder: str, side: int, epochs: int) -> list[float]:
    """Trains on one rank with `fit`; gives the seconds of each epoch."""
    from pathlib import Path

    import lakelens.hvd as hvd
    from benchmarks.mobile_net import LOSS, EpochClock, build_transfer, optimizer

    hvd.init()
    seconds: list[float] = []
    rows, batches = dataset_of(source, Path(table), Path(folder), side, hvd.rank(), hvd.size())
    model = build_transfer(side, photos.CLASSES)
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
        return tf.cast(decode_jpeg(encoded, side), tf.float32)

    images, labels = stored_columns(table, "image", "label")
    rows, local = len(images), BATCH // size
    if source == "memory":
        import numpy as np

        pixels = np.stack([tf.io.decode_jpeg(image, channels=3).numpy() for image in images[rank::size]])
        arrays = tf.data.Dataset.from_tensor_slices((pixels, labels[rank::size]))
        shuffled = arrays.shuffle(_SHUFFLE_ROWS).repeat().batch(local, drop_remainder=True)
        return rows, shuffled.map(lambda batch, label: (tf.cast(batch, tf.float32), label)).prefetch(2)
    if source == "petastorm":
        pairs = _from_petastorm(folder, decoded, rank, size)
    else:
        paths = sorted(str(path) for path in (folder / "tfrecord").iterdir())
        pairs = read_tfrecords(paths[rank::size], decoded, None)
    return rows, pairs.batch(local, drop_remainder=True).prefetch(2)


def _from_petastorm(folder: Path, decoded: Callable[[Any], Any], rank: int, size: int) -> Any:
    """Reads the converter's copy as `make_tf_dataset` does, on a rank that has no Spark."""
    import tensorflow as tf
    from petastorm import make_batch_reader
    from petastorm.tf_utils import make_petastorm_dataset

    files = json.loads((folder / "petastorm.json").read_text(encoding="utf-8"))
    reader = make_batch_reader(files, num_epochs=None, cur_shard=rank, shard_count=size, shuffle_row_groups=True)
    rows = make_petastorm_dataset(reader).unbatch()
    return rows.map(lambda row: (decoded(row.image), row.label), num_parallel_calls=tf.data.AUTOTUNE)


def run(arguments: Any) -> Report:
    """Runs the benchmark."""
    if arguments.epochs < 2:
        raise SystemExit("--epochs 1: the first epoch, in which TensorFlow traces, is left out; give 2 or more")
    report = Report.of("training", arguments, "photographs", "sides", "ranks", "epochs", "repeats", batch=BATCH)
    with scratch(arguments.folder) as (kept, temporary):
        made = photos.photographs(kept, arguments.photographs)
        for side in arguments.sides:
            place = temporary / f"side-{side}"
            place.mkdir()
            table, python = place / "table", Path(sys.executable)
            write_table(made.folder, table, side)
            with ExitStack() as stack:
                if "tfrecord" in arguments.contenders:
                    write_tfrecords(table, place / "tfrecord")
                if "petastorm" in arguments.contenders:
                    python = _petastorms_python(kept, max(arguments.ranks))
                    copies = stack.enter_context(Contender(Copies, place / "copies", python=python))
                    files = copies.call("write", table=str(table))["files"]
                    (place / "petastorm.json").write_text(json.dumps(files), encoding="utf-8")
                for ranks in arguments.ranks:
                    _one_setting(report, arguments, place, side, ranks, python)
    return report


def _petastorms_python(kept: Path, ranks: int) -> Path:
    """Finds or makes the interpreter for Petastorm, with Horovod if several ranks train."""
    python = petastorm_python(kept)
    if ranks > 1 and python != Path(sys.executable):
        subprocess.run([python, "-m", "lakelens.horovod_build"], check=True, stdout=sys.stderr)
    return python


def _one_setting(report: Report, arguments: Any, place: Path, side: int, ranks: int, petastorms: Path) -> None:
    table, rows, epochs = place / "table", arguments.photographs, arguments.epochs
    waits: list[float] = []

    def trained(name: str, repeat: str, waited: list[float]) -> dict[str, float]:
        config = experiment(table, place / f"{name}-{ranks}-{repeat}".replace(" ", "-"), side, epochs)
        config["resources"]["env"] |= _GLIBC if name == "given back" else {}
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt
        taken, wait = train_unsaved(config, _TRIAL, ranks, **_MODEL)
        faults = resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt - before
        waited.append(wait)
        return {"images_s": rows / statistics.median(taken), "faults": faults / (rows * epochs)}

    def with_lakelens(name: str) -> Measure:
        waited = waits if name == "lakelens" else []
        return lambda repeat: trained(name, str(repeat), waited)

    def by_hand(source: str) -> Measure:
        given = {"source": source, "table": str(table), "folder": str(place), "side": side, "epochs": epochs}
        python = petastorms if source == "petastorm" else sys.executable

        def once(repeat: int) -> dict[str, float]:
            with Contender(ByHand, place / f"{source}-{ranks}-{repeat}", python=python) as contender:
                taken = contender.call("train", ranks=ranks, given=given)["epochs"]
            return {"images_s": rows / statistics.median(taken[1:])}

        return once

    label = f"{side} px, {ranks} rank(s):"
    tell(label)
    own = [name for name in arguments.contenders if name in ("lakelens", "given back")]
    measures = {name: with_lakelens(name) if name in own else by_hand(name) for name in arguments.contenders}
    report.measure(arguments.repeats, measures, _UNITS, f"{label} ")
    for name in ("tfrecord", "petastorm"):
        report.compare(f"{label} {name}", f"{label} memory")
        report.compare(f"{label} lakelens", f"{label} {name}")
    report.compare(f"{label} lakelens", f"{label} memory", at_least=_AIM)
    report.compare(f"{label} lakelens", f"{label} given back")
    for name in own:
        with PeakMemory(os.getpid()) as memory:
            trained(name, "memory", [])
        report.facts[f"{label} {name}, MiB of a rank"] = memory.as_json()["other_mib"]
    if waits:
        share = statistics.median(waits)
        report.aim(f"{label} share of its time that lakelens waited for the feed", share, at_most=_WAIT)


if __name__ == "__main__":
    flags = parser(__doc__, repeats=3, photographs=1000, contenders=CONTENDERS)
    flags.add_argument("--sides", type=positive, nargs="+", default=[96, 160], help="sides of the images")
    flags.add_argument("--ranks", type=positive, nargs="+", default=[1, 2], help="numbers of ranks")
    flags.add_argument("--epochs", type=positive, default=4, help="epochs of each training")
    command(flags, run)
