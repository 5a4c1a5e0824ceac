"""The feed: lakelens's `DeltaFeed` beside Petastorm's converter, TFRecord files, and the limits, over the same rows.

    python -m benchmarks.feed [--stores jpeg raw_rgb] [--photographs 1000] [--repeats 5] [--json] [--folder KEPT]

The rows are photographs at 299 pixels, stored as JPEG and as raw pixels. One measurement is one pass of three epochs in
batches of 64, timed from the first batch on; a pixel of each batch is looked at. Each contender gives shuffled uint8
images unless its name says float32, and all decode JPEG to the same pixels. The limit for JPEG is TensorFlow's decoder
on bytes that are already in memory, and simplejpeg, which lakelens uses, decoding into the same memory again and
again. For raw pixels the limit is copying each image once into its batch. Images per processor
second is the number to compare when the machine is shared with others.

The accelerator is emulated, as MLPerf Storage does it: a step is a sleep of batch / rate seconds, and the accelerator
is busy for the share of the time after the first batch that it sleeps.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from . import photographs as photos
from .contender import Contender
from .emulated import highest_busy_rate, take
from .harness import Report, interleave, parser, positive, scratch, tell
from .memory import PeakMemory, cpu_seconds
from .peers import petastorm_python
from .sparks import session

SIZE = 299
BATCH = 64
STORES = ("jpeg", "raw_rgb")
BUSY = 0.9
_SHUFFLE_ROWS = 1024
_WITH_ACCELERATOR = ("lakelens", "petastorm", "tfrecord")
_BUSY_ROUNDS = 5


class Source:
    """A contender that gives batches of images in its own process."""

    def __init__(self, table: str, store: str, folder: str, epochs: int) -> None:
        self.table, self.store, self.folder, self.epochs = table, store, Path(folder), epochs
        self.dataset = self.build()

    def build(self) -> Any:
        """Builds what one pass iterates over."""
        raise NotImplementedError

    def batches(self) -> Iterator[Any]:
        """Gives the images of each batch of one pass."""
        for images, *_ in self.dataset:
            yield images

    def take(self, rate: float | None = None) -> dict[str, Any]:
        """Takes all batches, with an emulated accelerator of `rate` images a second, or without one."""
        return take(self.batches(), BATCH, rate)

    def close(self) -> None:
        """Ends what the contender holds."""

    def _decode(self, encoded: Any) -> Any:
        import tensorflow as tf

        if self.store == "raw_rgb":
            return tf.reshape(tf.io.decode_raw(encoded, tf.uint8), (SIZE, SIZE, 3))
        return tf.ensure_shape(tf.io.decode_jpeg(encoded, channels=3, dct_method="INTEGER_ACCURATE"), (SIZE, SIZE, 3))

    def _rows(self) -> tuple[list[bytes], list[int]]:
        """All rows of the table, in memory."""
        import pyarrow.dataset as ds

        from lakelens.table import Table

        snapshot = Table.of(self.table).snapshot()
        places = [snapshot.file_location(i) for i in range(len(snapshot.files))]
        rows = ds.dataset(places, format="parquet").to_table(columns=["image", "label"])
        return rows["image"].to_pylist(), rows["label"].to_pylist()


class Lakelens(Source):
    """`DeltaFeed.as_dataset`, straight from the table's version."""

    dtype = "uint8"

    def build(self) -> Any:
        """Opens the newest version."""
        from lakelens import DeltaFeed

        return DeltaFeed(self.table).as_dataset(BATCH, rank=0, size=1, epochs=self.epochs, dtype=self.dtype)


class LakelensFloat(Lakelens):
    """`DeltaFeed.as_dataset` as it comes by default: float32."""

    dtype = "float32"


class LakelensCache(Source):
    """`DeltaFeed.as_dataset` with decoded images kept on disk; the pass that decodes them is not timed."""

    def build(self) -> Any:
        """Opens the newest version, and decodes it into the cache."""
        from lakelens import DeltaFeed

        cache = self.folder / "decoded"
        return DeltaFeed(self.table).as_dataset(BATCH, 0, 1, self.epochs, dtype="uint8", cache=cache)


class ReadyArrays(Source):
    """The limit of the cache: decoded images in memory, copied into shuffled batches and handed to tf.data."""

    def build(self) -> Any:
        """Decodes all rows."""
        import numpy as np
        import tensorflow as tf

        images, _ = self._rows()
        ready = np.stack([self._decode(image).numpy() for image in images])

        def batches() -> Iterator[Any]:
            for _ in range(self.epochs):
                order = np.random.permutation(len(ready))
                for start in range(0, len(ready), BATCH):
                    yield ready[order[start : start + BATCH]]

        signature = tf.TensorSpec((None, SIZE, SIZE, 3), tf.uint8)
        return tf.data.Dataset.from_generator(batches, output_signature=signature).prefetch(2).map(lambda x: (x,))


class Petastorm(Source):
    """Petastorm's converter: the rows copied to a cache folder, read by `make_tf_dataset`, decoded by tf.data."""

    def build(self) -> Any:
        """Writes the cache."""
        from petastorm.spark import SparkDatasetConverter, make_spark_converter

        self.spark = session(self.folder)
        cache = self.folder / "petastorm"
        self.spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, cache.as_uri())
        rows = self.spark.read.format("delta").load(self.table).select("image", "label")
        self.converter = make_spark_converter(rows)
        return None

    def batches(self) -> Iterator[Any]:
        """Reads the cache in the way that takes the least processor time for each stored form.

        Pixels are decoded a batch at a time, and `make_tf_dataset` does not batch and flatten them again.
        """
        import tensorflow as tf

        size = BATCH if self.store == "jpeg" else None
        with self.converter.make_tf_dataset(batch_size=size, num_epochs=self.epochs) as dataset:
            rows = dataset.unbatch()
            if self.store == "jpeg":
                decoded = rows.map(
                    lambda row: (self._decode(row.image), row.label), num_parallel_calls=tf.data.AUTOTUNE
                ).batch(BATCH)
            else:
                decoded = rows.batch(BATCH).map(
                    lambda batch: (_pixels(batch.image), batch.label), num_parallel_calls=tf.data.AUTOTUNE
                )
            for images, _ in decoded.prefetch(2):
                yield images

    def close(self) -> None:
        """Removes the cache and ends the session."""
        self.converter.delete()
        self.spark.stop()


class TFRecord(Source):
    """tf.data over TFRecord files that were written before."""

    def build(self) -> Any:
        """Writes the rows to eight files and reads them shuffled."""
        import tensorflow as tf

        images, labels = self._rows()
        paths = [str(self.folder / f"part-{i}.tfrecord") for i in range(8)]
        for i, path in enumerate(paths):
            with tf.io.TFRecordWriter(path) as writer:
                for image, label in zip(images[i::8], labels[i::8], strict=True):
                    writer.write(_example(image, label))
        features = {"image": tf.io.FixedLenFeature((), tf.string), "label": tf.io.FixedLenFeature((), tf.int64)}

        def read(record: Any) -> tuple[Any, Any]:
            row = tf.io.parse_single_example(record, features)
            return self._decode(row["image"]), row["label"]

        files = tf.data.Dataset.from_tensor_slices(paths).shuffle(8)
        records = files.interleave(tf.data.TFRecordDataset, cycle_length=8, num_parallel_calls=tf.data.AUTOTUNE)
        shuffled = records.shuffle(_SHUFFLE_ROWS).repeat(self.epochs)
        return shuffled.map(read, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH).prefetch(2)


class DecodeLimit(Source):
    """The limit for encoded rows: TensorFlow's decoder on bytes in memory, nothing read, nothing shuffled."""

    def build(self) -> Any:
        """Loads all rows."""
        import tensorflow as tf

        images, _ = self._rows()
        rows = tf.data.Dataset.from_tensor_slices(images).repeat(self.epochs)
        return rows.map(self._decode, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH).prefetch(2).map(lambda x: (x,))


class SimplejpegLimit(Source):
    """The floor under encoded rows: simplejpeg on bytes in memory, in as many threads as there are cores."""

    def build(self) -> Any:
        """Loads all rows."""
        images, _ = self._rows()
        return images

    def batches(self) -> Iterator[Any]:
        """Decodes into one batch that is used again."""
        import numpy as np
        import simplejpeg

        cores = len(os.sched_getaffinity(0))
        batch = np.empty((BATCH, SIZE, SIZE, 3), np.uint8)

        def decode(images: list[bytes], first: int) -> None:
            for place in range(first, len(images), cores):
                simplejpeg.decode_jpeg(images[place], "RGB", buffer=batch[place])

        with ThreadPoolExecutor(cores) as pool:
            for start in [*range(0, len(self.dataset), BATCH)] * self.epochs:
                images = self.dataset[start : start + BATCH]
                list(pool.map(lambda first, images=images: decode(images, first), range(cores)))
                yield batch[: len(images)]


class CopyLimit(Source):
    """The limit for raw rows: each image is copied once, from memory into its batch."""

    def build(self) -> Any:
        """Loads all rows."""
        import numpy as np

        images, _ = self._rows()
        return np.frombuffer(b"".join(images), dtype=np.uint8).reshape(len(images), SIZE, SIZE, 3)

    def batches(self) -> Iterator[Any]:
        """Copies into one batch that is used again."""
        import numpy as np

        batch = np.empty((BATCH, SIZE, SIZE, 3), np.uint8)
        for start in [*range(0, len(self.dataset), BATCH)] * self.epochs:
            rows = self.dataset[start : start + BATCH]
            batch[: len(rows)] = rows
            yield batch[: len(rows)]


CONTENDERS: Mapping[str, tuple[type[Source], tuple[str, ...]]] = {
    "lakelens": (Lakelens, STORES),
    "lakelens float32": (LakelensFloat, STORES),
    "lakelens cache": (LakelensCache, ("jpeg",)),
    "ready arrays": (ReadyArrays, ("jpeg",)),
    "petastorm": (Petastorm, STORES),
    "tfrecord": (TFRecord, STORES),
    "decode limit": (DecodeLimit, ("jpeg",)),
    "simplejpeg limit": (SimplejpegLimit, ("jpeg",)),
    "memcpy": (CopyLimit, ("raw_rgb",)),
}


class Tables:
    """Writes the tables that are read, by lakelens's ingest."""

    def __init__(self, folder: str) -> None:
        self.spark = session(Path(folder))

    def write(self, source: str, table: str, store: str, size: int = SIZE) -> dict[str, Any]:
        """Ingests photographs as one table."""
        from lakelens import ImageTable

        ImageTable(self.spark, table).ingest(source, layout="class_folders", size=size, store=store)
        return {}

    def close(self) -> None:
        """Ends the session."""
        self.spark.stop()


def _pixels(stored: Any) -> Any:
    """Gives a batch of stored pixels its shape."""
    import tensorflow as tf

    return tf.reshape(tf.io.decode_raw(stored, tf.uint8), (-1, SIZE, SIZE, 3))


def _example(image: bytes, label: int) -> bytes:
    import tensorflow as tf

    features = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    example: bytes = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
    return example


def measure(contender: Contender, rows: int) -> Callable[[int], dict[str, float]]:
    """Makes the function that takes all batches once and gives the rates."""

    def once(_: int) -> dict[str, float]:
        before_s = cpu_seconds(contender.pid)
        found = contender.call("take")
        cpu_s = cpu_seconds(contender.pid) - before_s
        if found["rows"] < rows:
            raise ValueError(f"{contender.target}: {found['rows']} of {rows} rows")
        return {"images_s": found["images_s"], "images_cpu_s": rows / cpu_s, "first_s": found["first_s"]}

    return once


def run(arguments: Any) -> Report:
    """Runs the benchmark."""
    report = Report(
        "feed",
        {
            "photographs": arguments.photographs,
            "epochs": arguments.epochs,
            "size": SIZE,
            "batch": BATCH,
            "repeats": arguments.repeats,
        },
    )
    with scratch(arguments.folder) as (kept, temporary):
        made = photos.photographs(kept, arguments.photographs)
        tables = {store: temporary / f"table-{store}" for store in arguments.stores}
        with Contender("benchmarks.feed:Tables", temporary / "tables.log", folder=str(temporary / "tables")) as writer:
            for store, table in tables.items():
                tell(f"writing {table.name}")
                writer.call("write", source=str(made.folder), table=str(table), store=store)
        for store, table in tables.items():
            _one_store(report, arguments, store, table, (kept, temporary), made.count)
    return report


def _one_store(report: Report, arguments: Any, store: str, table: Path, folders: tuple[Path, Path], rows: int) -> None:
    kept, temporary = folders
    running: dict[str, Contender] = {}
    try:
        for name in arguments.contenders:
            kind, stores = CONTENDERS[name]
            if store not in stores:
                continue
            place = temporary / f"{store}-{name.replace(' ', '-')}"
            place.mkdir()
            tell(f"starting {name} for {store}")
            target = f"benchmarks.feed:{kind.__name__}"
            running[name] = Contender(
                target,
                place / "log",
                python=petastorm_python(kept) if name == "petastorm" else sys.executable,
                table=str(table),
                store=store,
                folder=str(place),
                epochs=arguments.epochs,
            )
            running[name].call("take")
        found = interleave(
            arguments.repeats, {name: measure(c, rows * arguments.epochs) for name, c in running.items()}, tell
        )
        for name, values in found.items():
            report.add(f"{store} {name}", "images/s", values["images_s"])
            report.add(f"{store} {name} work", "images/processor second", values["images_cpu_s"])
        for name, contender in running.items():
            with PeakMemory(contender.pid) as memory:
                contender.call("take")
            report.facts[f"{store} {name} memory"] = memory.as_json()
            if arguments.busy and name in _WITH_ACCELERATOR:
                highest = report.series[f"{store} {name}"].median * 1.2
                rate = highest_busy_rate(
                    lambda r, c=contender: c.call("take", rate=r)["busy"], highest, BUSY, _BUSY_ROUNDS
                )
                report.facts[f"{store} {name} rate at {BUSY:.0%} busy, images/s"] = round(rate)
                tell(f"{store} {name}: {rate:.0f} images/s at {BUSY:.0%} busy")
    finally:
        for contender in running.values():
            contender.close()
    _compare(report, store)


def _compare(report: Report, store: str) -> None:
    ours = f"{store} lakelens"
    limit, limit_aim, peer_aim = ("decode limit", 0.95, None) if store == "jpeg" else ("memcpy", None, None)
    others = ((limit, limit_aim), ("simplejpeg limit", None), ("petastorm", peer_aim), ("tfrecord", None))
    for other, aim in others:
        theirs = f"{store} {other}"
        if ours in report.series and theirs in report.series:
            report.compare(ours, theirs, at_least=aim)
            report.compare(f"{ours} work", f"{theirs} work")
    for other, aim in (("ready arrays", 0.8), ("petastorm", 2.5)):
        theirs = f"{store} {other}"
        if f"{ours} cache" in report.series and theirs in report.series:
            report.compare(f"{ours} cache", theirs, at_least=aim)
            report.compare(f"{ours} cache work", f"{theirs} work")


def main(argv: list[str] | None = None) -> int:
    """Runs the command."""
    flags = parser("The feed beside Petastorm's converter, TFRecord and the limits.")
    flags.add_argument("--photographs", type=positive, default=1000, help="how many rows")
    flags.add_argument("--epochs", type=positive, default=3, help="epochs of one pass")
    flags.add_argument("--stores", nargs="+", choices=STORES, default=list(STORES), help="stored forms")
    flags.add_argument(
        "--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS), help="who takes part"
    )
    flags.add_argument("--no-busy", dest="busy", action="store_false", help="leave out the emulated accelerator")
    arguments = flags.parse_args(argv)
    run(arguments).show(arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
