"""Petastorm's users' code on the feed, beside Petastorm's own readers and MosaicML Streaming, over the same rows.

    python -m benchmarks.petastorm [--photographs 1000] [--repeats 5] [--json] [--folder KEPT] [--no-torch]

The rows are photographs at 299 pixels, stored as JPEG. The same code runs on lakelens's reader, straight on the pinned
version, and on Petastorm's `make_batch_reader` over a plain copy of it: `make_petastorm_dataset`, unbatched and batched
again, and PyTorch's `BatchedDataLoader`, both with `lakelens.decode_images` as their TransformSpec. Then the converters
themselves: `make_delta_converter` beside `make_spark_converter`, whose copy Spark writes first. For PyTorch, MosaicML
Streaming reads shards that were converted from the same version, in PyTorch's own loader with a process for each core;
it decodes with the same decoder.

One measurement is one pass in batches of 64, from opening the rows to the last batch: a reader whose first item holds a
whole row group has done most of the work before its first batch. The time to the first batch is that of opening the
version and taking one batch; for the converter and Streaming it includes the conversion. Memory is watched in
its own pass.

Petastorm's reader at times ends before it has given all rows, without an error: its pool looks at "nothing is waiting"
and at "all was handed out" at two different moments. Such passes are counted, and taken again.

PyTorch gets its own environment, with MosaicML Streaming: `python -m benchmarks.peers streaming --folder KEPT`. Where
lakelens's environment has a newer pyarrow than Petastorm's reader works with, the reader runs in `peers petastorm`.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from . import photographs as photos
from .contender import Contender, versions_in
from .emulated import take
from .harness import Report, interleave, parser, positive, scratch, tell
from .memory import PeakMemory, cpu_seconds
from .peers import make_peer, petastorm_python
from .sparks import session

SIZE = 299
BATCH = 64
COLUMNS = ["image", "label"]
# Row groups of the copy: Petastorm's threads take one each.
_COPY_FILES = 8
# Petastorm's reader may end before it has given all rows; such a pass is counted and repeated.
_ATTEMPTS = 20


class Source:
    """A contender that gives batches of images, in its own process."""

    def __init__(self, table: str, copy: str, folder: str, epochs: int) -> None:
        import lakelens.training.feed  # noqa: F401 - before Petastorm, which it prepares for newer packages

        self.table, self.copy, self.folder, self.epochs = table, copy, Path(folder), epochs
        self.prepare()

    def prepare(self) -> None:
        """Does, before anything is measured, what a pass needs; imports above all."""

    def convert(self) -> None:
        """Makes the copy that the contender reads, if it needs one."""

    def batches(self, epochs: int) -> Iterator[Any]:
        """Opens the rows and gives the images of each batch."""
        raise NotImplementedError

    def take(self) -> dict[str, Any]:
        """Takes all batches."""
        return take(self.batches(self.epochs), BATCH)

    def first(self, convert: bool) -> dict[str, Any]:
        """Takes the first batch, with or without the conversion before it."""
        for lost in range(_ATTEMPTS):
            started = time.perf_counter()
            if convert:
                self.convert()
            with closing(self.batches(1)) as batches:  # type: ignore[type-var]
                images = next(batches, None)
                seconds = time.perf_counter() - started
            if images is not None and tuple(images.shape) == (BATCH, SIZE, SIZE, 3):
                return {"seconds": seconds, "lost": lost}
        raise ValueError(f"no first batch of {BATCH} rows in {_ATTEMPTS} attempts")

    def close(self) -> None:
        """Ends what the contender holds."""

    def _files(self) -> list[str]:
        return [path.as_uri() for path in sorted(Path(self.copy).glob("*.parquet"))]


class TensorFlow(Source):
    """`make_petastorm_dataset`, unbatched and batched again."""

    def prepare(self) -> None:
        """Imports TensorFlow."""
        import tensorflow as tf

        tf.zeros(1)

    def reader(self, epochs: int) -> Any:
        """Makes the reader."""
        raise NotImplementedError

    def batches(self, epochs: int) -> Iterator[Any]:
        """Gives batches as Petastorm's users make them."""
        from petastorm.tf_utils import make_petastorm_dataset

        with self.reader(epochs) as reader:
            for batch in make_petastorm_dataset(reader).unbatch().batch(BATCH).prefetch(2):
                yield batch.image


def lakelens_reader(table: str, epochs: int) -> Any:
    """Makes the feed's reader of the newest version."""
    import lakelens

    feed = lakelens.DeltaFeed(table)
    return feed.petastorm_reader(COLUMNS, epochs, transform_spec=lakelens.decode_images(SIZE, SIZE))


def petastorm_reader(files: list[str], epochs: int) -> Any:
    """Makes Petastorm's reader of a copy."""
    from petastorm import make_batch_reader

    import lakelens

    return make_batch_reader(files, COLUMNS, num_epochs=epochs, transform_spec=lakelens.decode_images(SIZE, SIZE))


class TensorFlowLakelens(TensorFlow):
    """On the feed's reader."""

    def reader(self, epochs: int) -> Any:
        """Reads the version."""
        return lakelens_reader(self.table, epochs)


class TensorFlowPetastorm(TensorFlow):
    """On Petastorm's reader."""

    def reader(self, epochs: int) -> Any:
        """Reads the copy."""
        return petastorm_reader(self._files(), epochs)


class DeltaConverter(TensorFlow):
    """`make_delta_converter` and its `make_tf_dataset`."""

    def batches(self, epochs: int) -> Iterator[Any]:
        """Opens the version and gives its batches."""
        import lakelens

        converter = lakelens.make_delta_converter(self.table, columns=COLUMNS)
        spec = lakelens.decode_images(SIZE, SIZE)
        with converter.make_tf_dataset(BATCH, num_epochs=epochs, transform_spec=spec) as dataset:
            for batch in dataset:
                yield batch.image


class SparkConverter(TensorFlow):
    """`make_spark_converter` and its `make_tf_dataset`; its Spark session is warm."""

    def prepare(self) -> None:
        """Starts Spark and converts once."""
        from petastorm.spark import SparkDatasetConverter

        super().prepare()
        self.spark = session(self.folder)
        self.spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, (self.folder / "cache").as_uri())
        self.converter: Any = None
        self.convert()

    def convert(self) -> None:
        """Writes the copy again."""
        from petastorm.spark import make_spark_converter

        if self.converter is not None:
            self.converter.delete()
        self.converter = make_spark_converter(self.spark.read.format("delta").load(self.table).select(*COLUMNS))

    def batches(self, epochs: int) -> Iterator[Any]:
        """Gives the batches of the copy."""
        import lakelens

        spec = lakelens.decode_images(SIZE, SIZE)
        with self.converter.make_tf_dataset(BATCH, num_epochs=epochs, transform_spec=spec) as dataset:
            for batch in dataset:
                yield batch.image

    def close(self) -> None:
        """Removes the copy and ends the session."""
        self.converter.delete()
        self.spark.stop()


class Torch(Source):
    """`BatchedDataLoader` on a reader."""

    def prepare(self) -> None:
        """Imports PyTorch."""
        import torch

        torch.zeros(1)

    def reader(self, epochs: int) -> Any:
        """Makes the reader."""
        raise NotImplementedError

    def batches(self, epochs: int) -> Iterator[Any]:
        """Gives batches as NumPy arrays over PyTorch's memory."""
        from petastorm.pytorch import BatchedDataLoader

        with self.reader(epochs) as reader:
            for batch in BatchedDataLoader(reader, batch_size=BATCH):
                yield batch["image"].numpy()


class TorchLakelens(Torch):
    """On the feed's reader."""

    def reader(self, epochs: int) -> Any:
        """Reads the version in items of a batch."""
        import lakelens

        return lakelens.DeltaFeed(self.table).petastorm_reader(
            COLUMNS, epochs, transform_spec=lakelens.decode_images(SIZE, SIZE), batch_size=BATCH
        )


class TorchPetastorm(Torch):
    """On Petastorm's reader."""

    def reader(self, epochs: int) -> Any:
        """Reads the copy."""
        return petastorm_reader(self._files(), epochs)


class Streaming(Torch):
    """MosaicML Streaming: shards on the local disk, read and decoded in processes of PyTorch's loader."""

    def prepare(self) -> None:
        """Converts once."""
        super().prepare()
        self.shards = self.folder / "shards"
        self.convert()

    def convert(self) -> None:
        """Writes the shards again from the version's rows."""
        import streaming

        import lakelens

        shutil.rmtree(self.shards, ignore_errors=True)
        feed = lakelens.DeltaFeed(self.table)
        with streaming.MDSWriter(out=str(self.shards), columns={"image": "bytes", "label": "int"}) as writer:
            for columns, weights in feed.as_column_numpy(BATCH, columns=COLUMNS):
                for image, label, weight in zip(columns["image"], columns["label"], weights, strict=True):
                    if weight:
                        writer.write({"image": image, "label": int(label)})

    def batches(self, epochs: int) -> Iterator[Any]:
        """Gives batches of shuffled rows."""
        import streaming
        from torch.utils.data import DataLoader

        class Decoded(streaming.StreamingDataset):  # type: ignore[misc]
            def __getitem__(self, index: int) -> Any:
                row = super().__getitem__(index)
                return _decoded(row["image"]), row["label"]

        streaming.base.util.clean_stale_shared_memory()
        dataset = Decoded(local=str(self.shards), shuffle=True, batch_size=BATCH)
        loader = DataLoader(dataset, batch_size=BATCH, num_workers=len(os.sched_getaffinity(0)))
        for _ in range(epochs):
            for images, _ in loader:
                yield images.numpy()


def _decoded(data: bytes) -> Any:
    """Decodes a row as lakelens does."""
    import numpy as np

    from lakelens.etl.images.stored_image import PixelDecoder, StoredImage

    pixels = np.empty((SIZE, SIZE, 3), np.uint8)
    PixelDecoder().decode(StoredImage(data), pixels)
    return pixels


TENSORFLOW: Mapping[str, type[Source]] = {
    "tensorflow lakelens": TensorFlowLakelens,
    "tensorflow petastorm": TensorFlowPetastorm,
    "delta converter": DeltaConverter,
    "spark converter": SparkConverter,
}
TORCH: Mapping[str, type[Source]] = {
    "torch lakelens": TorchLakelens,
    "torch petastorm": TorchPetastorm,
    "torch streaming": Streaming,
}
_ON_PETASTORMS_READER = ("tensorflow petastorm", "spark converter")
# Those that read its own copy, which the time to the first batch can include.
_CONVERTS = ("spark converter", "torch streaming")


class Tables:
    """Writes the table by lakelens's ingest, and the plain copy by Spark."""

    def __init__(self, folder: str) -> None:
        self.spark = session(Path(folder))

    def write(self, source: str, table: str, copy: str) -> dict[str, Any]:
        """Ingests photographs as one table, and copies its rows."""
        from lakelens import ImageTable

        ImageTable(self.spark, table).ingest(source, layout="class_folders", size=SIZE, store="jpeg")
        rows = self.spark.read.format("delta").load(table).select(*COLUMNS).repartition(_COPY_FILES)
        rows.write.option("compression", "uncompressed").option("parquet.block.size", 32 << 20).parquet(copy)
        return {}

    def close(self) -> None:
        """Ends the session."""
        self.spark.stop()


class Passes:
    """Whole passes of one contender.

    Attributes:
        lost: Passes and first batches that ended too early, without an error.
    """

    def __init__(self, contender: Contender, name: str, rows: int) -> None:
        self.contender, self.name, self.rows = contender, name, rows
        self.lost = 0

    def take(self) -> dict[str, Any]:
        """Takes a pass; one that lost rows is counted and repeated."""
        for _ in range(_ATTEMPTS):
            before_s = cpu_seconds(self.contender.pid)
            found = self.contender.call("take")
            found["cpu_s"] = cpu_seconds(self.contender.pid) - before_s
            if found["rows"] == self.rows:
                return found
            tell(f"{self.name}: a pass gave {found['rows']} of {self.rows} rows and ended without an error")
            self.lost += 1
        raise ValueError(f"{self.name}: no whole pass in {_ATTEMPTS} attempts")

    def measure(self, _: int) -> dict[str, float]:
        """Takes a pass, and first batches with and without the conversion."""
        found = self.take()
        values = {"images_s": self.rows / found["seconds"], "images_cpu_s": self.rows / found["cpu_s"]}
        values["first_s"] = self._first(convert=False)
        if self.name in _CONVERTS:
            values["converted_s"] = self._first(convert=True)
        return values

    def _first(self, *, convert: bool) -> float:
        found = self.contender.call("first", convert=convert)
        self.lost += found["lost"]
        return float(found["seconds"])


def run(arguments: Any) -> Report:
    """Runs the benchmark."""
    settings = {key: getattr(arguments, key) for key in ("photographs", "epochs", "repeats")}
    report = Report("petastorm", {**settings, "size": SIZE, "batch": BATCH})
    with scratch(arguments.folder) as (kept, temporary):
        made = photos.photographs(kept, arguments.photographs)
        table, copy = temporary / "table", temporary / "copy"
        with Contender("benchmarks.petastorm:Tables", temporary / "log", folder=str(temporary / "spark")) as writer:
            tell("writing the table and its copy")
            writer.call("write", source=str(made.folder), table=str(table), copy=str(copy))
        reader = petastorm_python(kept)
        report.facts["environment with Petastorm"] = versions_in(
            reader, temporary / "log", ["tensorflow", "petastorm", "pyarrow", "pyspark"]
        )
        kinds = {
            name: (kind, reader if name in _ON_PETASTORMS_READER else Path(sys.executable))
            for name, kind in TENSORFLOW.items()
        }
        if arguments.torch:
            tell("looking for the environment with PyTorch; without --folder it is made and removed again")
            python = make_peer("streaming", kept)
            packages = ["torch", "mosaicml-streaming", "petastorm"]
            report.facts["environment with PyTorch"] = versions_in(python, temporary / "log", packages)
            kinds |= {name: (kind, python) for name, kind in TORCH.items()}
        else:
            report.notes.append("PyTorch was left out (--no-torch)")
        running: dict[str, Contender] = {}
        try:
            for name, (kind, python) in kinds.items():
                place = temporary / name.replace(" ", "-")
                place.mkdir()
                tell(f"starting {name}")
                running[name] = Contender(
                    f"benchmarks.petastorm:{kind.__name__}",
                    place / "log",
                    python=python,
                    table=str(table),
                    copy=str(copy),
                    folder=str(place),
                    epochs=arguments.epochs,
                )
            _measure(report, running, arguments.repeats, made.count * arguments.epochs)
        finally:
            for contender in running.values():
                contender.close()
    _compare(report)
    return report


def _measure(report: Report, running: Mapping[str, Contender], repeats: int, rows: int) -> None:
    passes = {name: Passes(contender, name, rows) for name, contender in running.items()}
    for taken in passes.values():
        taken.take()  # warm
    found = interleave(repeats, {name: taken.measure for name, taken in passes.items()}, tell)
    for name, values in found.items():
        report.add(name, "images/s", values["images_s"])
        report.add(f"{name} work", "images/processor second", values["images_cpu_s"])
        report.add(f"{name} first batch", "s", values["first_s"])
        if "converted_s" in values:
            report.add(f"{name} first batch, conversion included", "s", values["converted_s"])
    for name, taken in passes.items():
        with PeakMemory(taken.contender.pid) as memory:
            taken.take()
        report.facts[f"{name} memory"] = memory.as_json()
        report.add(f"{name} memory", "MiB", [memory.by_kind["main"] / 2**20])
        report.facts[f"{name}, passes that lost rows"] = taken.lost


def _compare(report: Report) -> None:
    for ours, theirs in (
        ("tensorflow lakelens", "tensorflow petastorm"),
        ("delta converter", "spark converter"),
        ("torch lakelens", "torch petastorm"),
    ):
        if ours in report.series:
            report.compare(ours, theirs, at_least=1.2)
            report.compare(f"{ours} work", f"{theirs} work")
            report.compare(f"{ours} first batch", f"{theirs} first batch")
            report.compare(f"{ours} memory", f"{theirs} memory", at_most=0.6)
    converted = "first batch, conversion included"
    report.compare("delta converter first batch", f"spark converter {converted}", at_most=0.2)
    if "torch lakelens" in report.series:
        report.compare("torch lakelens", "torch streaming", at_least=1.0)
        report.compare("torch lakelens work", "torch streaming work")
        report.compare("torch lakelens first batch", "torch streaming first batch")
        report.compare("torch lakelens first batch", f"torch streaming {converted}")


def main(argv: list[str] | None = None) -> int:
    """Runs the command."""
    flags = parser("Petastorm's users' code on the feed, beside Petastorm and MosaicML Streaming.")
    flags.add_argument("--photographs", type=positive, default=1000, help="how many rows")
    flags.add_argument("--epochs", type=positive, default=3, help="epochs of one pass")
    flags.add_argument("--no-torch", dest="torch", action="store_false", help="leave out PyTorch and its environment")
    arguments = flags.parse_args(argv)
    run(arguments).show(arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
