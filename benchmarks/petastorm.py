"""Petastorm's users' code on the feed, beside Petastorm's own readers and MosaicML Streaming, over the same rows.

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

PyTorch gets its own environment, with MosaicML Streaming: `peers streaming`. Where lakelens's environment has a newer
pyarrow than Petastorm's reader works with, the reader runs in `peers petastorm`.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from . import photographs as photos
from .contender import Contender
from .harness import Report, command, parser, positive, scratch, tell
from .memory import PeakMemory, cpu_seconds
from .peers import make_peer, petastorm_python, versions_in
from .sparks import Tables
from .tensorflow_rows import Converted, take

SIZE = 299
BATCH = 64
COLUMNS = ["image", "label"]
# Row groups of the copy: Petastorm's threads take one each.
_COPY_FILES = 8
_ATTEMPTS = 20


class Source:
    """A contender that gives batches of images, in its own process."""

    def __init__(self, table: str, copy: str, folder: str, epochs: int) -> None:
        import lakelens.training.feed  # noqa: F401 - before Petastorm, which it prepares for newer packages

        self.table, self.copy, self.folder, self.epochs = table, copy, Path(folder), epochs
        self.prepare()
        self.convert()

    def prepare(self) -> None:
        """Does, before anything is measured, what a pass needs; imports above all."""

    def convert(self) -> None:
        """Makes the copy that the contender reads, if it needs one."""

    def reader(self, epochs: int) -> Any:
        """Makes Petastorm's reader or the feed's, for contenders that read by one."""
        raise NotImplementedError

    def batches(self, epochs: int) -> Iterator[Any]:
        """Opens the rows and gives the images of each batch."""
        raise NotImplementedError

    def take(self) -> dict[str, Any]:
        """Takes all batches."""
        return take(self.batches(self.epochs))

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


class OnLakelens(Source):
    """Reads the newest version by the feed's reader."""

    item_rows: int | None = None

    def reader(self, epochs: int) -> Any:
        """Makes the reader."""
        import lakelens

        feed, spec = lakelens.DeltaFeed(self.table), lakelens.decode_images(SIZE, SIZE)
        items = {} if self.item_rows is None else {"batch_size": self.item_rows}
        return feed.petastorm_reader(COLUMNS, epochs, transform_spec=spec, **items)


class OnPetastorm(Source):
    """Reads the copy by Petastorm's reader."""

    def reader(self, epochs: int) -> Any:
        """Makes the reader."""
        from petastorm import make_batch_reader

        import lakelens

        files = [path.as_uri() for path in sorted(Path(self.copy).glob("*.parquet"))]
        return make_batch_reader(files, COLUMNS, num_epochs=epochs, transform_spec=lakelens.decode_images(SIZE, SIZE))


class TensorFlow(Source):
    """`make_petastorm_dataset`, unbatched and batched again."""

    def prepare(self) -> None:
        """Imports TensorFlow."""
        import tensorflow as tf

        tf.zeros(1)

    def batches(self, epochs: int) -> Iterator[Any]:
        """Gives batches as Petastorm's users make them."""
        from petastorm.tf_utils import make_petastorm_dataset

        with self.reader(epochs) as reader:
            for batch in make_petastorm_dataset(reader).unbatch().batch(BATCH).prefetch(2):
                yield batch.image


class TensorFlowLakelens(OnLakelens, TensorFlow):
    """On the feed's reader."""


class TensorFlowPetastorm(OnPetastorm, TensorFlow):
    """On Petastorm's reader."""


class DeltaConverter(TensorFlow):
    """`make_delta_converter` and its `make_tf_dataset`."""

    def converter(self) -> Any:
        """Opens the version."""
        import lakelens

        return lakelens.make_delta_converter(self.table, columns=COLUMNS)

    def batches(self, epochs: int) -> Iterator[Any]:
        """Gives the batches of a converter."""
        import lakelens

        spec = lakelens.decode_images(SIZE, SIZE)
        with self.converter().make_tf_dataset(BATCH, num_epochs=epochs, transform_spec=spec) as dataset:
            for batch in dataset:
                yield batch.image


class SparkConverter(DeltaConverter):
    """`make_spark_converter` and its `make_tf_dataset`; its Spark session is warm."""

    def prepare(self) -> None:
        """Starts Spark."""
        super().prepare()
        self.converted = Converted(str(self.folder))

    def convert(self) -> None:
        """Writes the copy again."""
        self.converted.convert(self.table)

    def converter(self) -> Any:
        """Gives the converter of the copy."""
        return self.converted.converter

    def close(self) -> None:
        """Removes the copy and ends the session."""
        self.converted.close()


class Torch(Source):
    """`BatchedDataLoader` on a reader."""

    def prepare(self) -> None:
        """Imports PyTorch."""
        import torch

        torch.zeros(1)

    def batches(self, epochs: int) -> Iterator[Any]:
        """Gives batches as NumPy arrays over PyTorch's memory."""
        from petastorm.pytorch import BatchedDataLoader

        with self.reader(epochs) as reader:
            for batch in BatchedDataLoader(reader, batch_size=BATCH):
                yield batch["image"].numpy()


class TorchLakelens(OnLakelens, Torch):
    """On the feed's reader, in items of a batch."""

    item_rows = BATCH


class TorchPetastorm(OnPetastorm, Torch):
    """On Petastorm's reader."""


class Streaming(Torch):
    """MosaicML Streaming: shards on the local disk, read and decoded in processes of PyTorch's loader."""

    def convert(self) -> None:
        """Writes the shards again from the version's rows."""
        import streaming

        import lakelens

        shards = self.folder / "shards"
        shutil.rmtree(shards, ignore_errors=True)
        feed = lakelens.DeltaFeed(self.table)
        with streaming.MDSWriter(out=str(shards), columns={"image": "bytes", "label": "int"}) as writer:
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
        dataset = Decoded(local=str(self.folder / "shards"), shuffle=True, batch_size=BATCH)
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


CONTENDERS: dict[str, type[Source]] = {
    "tensorflow lakelens": TensorFlowLakelens,
    "tensorflow petastorm": TensorFlowPetastorm,
    "delta converter": DeltaConverter,
    "spark converter": SparkConverter,
    "torch lakelens": TorchLakelens,
    "torch petastorm": TorchPetastorm,
    "torch streaming": Streaming,
}
_ON_PETASTORMS_READER = ("tensorflow petastorm", "spark converter")
# Those that read a copy which they can make again: the time to their first batch can include it.
_CONVERTS = ("spark converter", "torch streaming")
_COMPARED = (
    ("tensorflow lakelens", "tensorflow petastorm", 1.2),
    ("delta converter", "spark converter", 1.2),
    ("torch lakelens", "torch petastorm", 1.2),
    ("torch lakelens", "torch streaming", 1.0),
)
_FIRST, _CONVERTED = "first batch", "first batch, conversion included"
_UNITS = {
    "images_s": ("", "images/s"),
    "images_cpu_s": (" work", "images/processor second"),
    "first_s": (f" {_FIRST}", "s"),
    "converted_s": (f" {_CONVERTED}", "s"),
}


class Passes:
    """Whole passes of one contender."""

    def __init__(self, contender: Contender, name: str, rows: int) -> None:
        self.contender, self.name, self.rows = contender, name, rows
        self.lost = 0  # Passes and first batches that ended too early, without an error

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
        return values | ({"converted_s": self._first(convert=True)} if self.name in _CONVERTS else {})

    def _first(self, *, convert: bool) -> float:
        found = self.contender.call("first", convert=convert)
        self.lost += found["lost"]
        return float(found["seconds"])


def run(arguments: Any) -> Report:
    """Runs the benchmark."""
    report = Report.of("petastorm", arguments, "photographs", "epochs", "repeats", size=SIZE, batch=BATCH)
    with scratch(arguments.folder) as (kept, temporary), ExitStack() as stack:
        made = photos.photographs(kept, arguments.photographs)
        table, copy = temporary / "table", temporary / "copy"
        with Contender(Tables, temporary / "writing") as tables:
            tables.call("ingest", source=str(made.folder), table=str(table), size=SIZE, store="jpeg")
            tables.call("copy", table=str(table), target=str(copy), files=_COPY_FILES)
        reader = petastorm_python(kept)
        versions = versions_in(reader, "tensorflow", "petastorm", "pyarrow", "pyspark")
        report.facts["environment with Petastorm"] = versions
        pythons = dict.fromkeys(_ON_PETASTORMS_READER, reader)
        if torch := [name for name in arguments.contenders if issubclass(CONTENDERS[name], Torch)]:
            python = make_peer("streaming", kept)
            versions = versions_in(python, "torch", "mosaicml-streaming", "petastorm")
            report.facts["environment with PyTorch"] = versions
            pythons |= dict.fromkeys(torch, python)
        given = {"table": str(table), "copy": str(copy), "epochs": arguments.epochs}
        passes = {}
        for name in arguments.contenders:
            place, python = temporary / name.replace(" ", "-"), pythons.get(name, Path(sys.executable))
            contender = stack.enter_context(Contender(CONTENDERS[name], place, python=python, **given))
            passes[name] = Passes(contender, name, made.count * arguments.epochs)
            passes[name].take()  # warm
        report.measure(arguments.repeats, {name: taken.measure for name, taken in passes.items()}, _UNITS)
        for name, taken in passes.items():
            with PeakMemory(taken.contender.pid) as memory:
                taken.take()
            report.facts[f"{name} memory"] = memory.as_json()
            report.add(f"{name} memory", "MiB", [memory.by_kind["main"] / 2**20])
            report.facts[f"{name}, passes that lost rows"] = taken.lost
    for ours, theirs, aim in _COMPARED:
        report.compare(ours, theirs, at_least=aim)
        report.compare(f"{ours} work", f"{theirs} work")
        report.compare(f"{ours} {_FIRST}", f"{theirs} {_FIRST}")
        report.compare(f"{ours} memory", f"{theirs} memory", at_most=None if theirs == "torch streaming" else 0.6)
    report.compare(f"delta converter {_FIRST}", f"spark converter {_CONVERTED}", at_most=0.2)
    report.compare(f"torch lakelens {_FIRST}", f"torch streaming {_CONVERTED}")
    return report


if __name__ == "__main__":
    flags = parser(__doc__, photographs=1000, contenders=CONTENDERS)
    flags.add_argument("--epochs", type=positive, default=3, help="epochs of one pass")
    command(flags, run)
