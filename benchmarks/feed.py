"""The feed: lakelens's `DeltaFeed` beside Petastorm's converter, TFRecord files, and the limits, over the same rows.

The rows are photographs at 299 pixels, stored as JPEG and as raw pixels. One measurement is one pass of three epochs in
batches of 64, timed from the first batch on; a pixel of each batch is looked at. Each contender gives shuffled uint8
images, and all decode JPEG to the same pixels. The limit for JPEG is TensorFlow's decoder on bytes that are already in
memory. For raw pixels the limit is copying each image once into its batch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from . import photographs as photos
from .contender import Contender
from .harness import Measure, Report, command, parser, positive, scratch
from .memory import cpu_seconds
from .peers import petastorm_python
from .sparks import stored_columns, write_table
from .tensorflow_rows import Converted, decode_jpeg, read_tfrecords, take, write_tfrecords

SIZE = 299
BATCH = 64
STORES = ("jpeg", "raw_rgb")
_TICK_S = 0.01  # of the system's count of processor time
_UNITS = {"images_s": ("", "images/s"), "images_cpu_s": (" work", "images/processor second")}


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

    def take(self) -> dict[str, Any]:
        """Takes all batches."""
        return take(self.batches())

    def _decode(self, encoded: Any) -> Any:
        return decode_jpeg(encoded, SIZE) if self.store == "jpeg" else _pixels(encoded)[0]

    def _images(self) -> list[bytes]:
        return stored_columns(self.table, "image")[0]


class Lakelens(Source):
    """`DeltaFeed.as_dataset`, straight from the table's version."""

    cached = False

    def build(self) -> Any:
        """Opens the newest version, in a process that keeps freed memory, as those of lakelens do."""
        from lakelens import DeltaFeed, keep_freed_memory

        keep_freed_memory()
        cache = self.folder / "decoded" if self.cached else False
        return DeltaFeed(self.table).as_dataset(BATCH, 0, 1, self.epochs, dtype="uint8", cache=cache)


class LakelensCache(Lakelens):
    """`DeltaFeed.as_dataset` with decoded images kept on disk; the pass that decodes them is not timed."""

    cached = True


class ReadyArrays(Source):
    """The limit of the cache: decoded images in memory, copied into shuffled batches and handed to tf.data."""

    def build(self) -> Any:
        """Decodes all rows."""
        import numpy as np
        import tensorflow as tf

        ready = np.stack([self._decode(image).numpy() for image in self._images()])

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
        self.converted = Converted(str(self.folder))
        return self.converted.convert(self.table)

    def batches(self) -> Iterator[Any]:
        """Reads the cache in the way that takes the least processor time for each stored form."""
        import tensorflow as tf

        # Pixels are decoded a batch at a time, and `make_tf_dataset` does not batch and flatten them again.
        encoded = self.store == "jpeg"
        with self.dataset.make_tf_dataset(batch_size=BATCH if encoded else None, num_epochs=self.epochs) as dataset:
            rows, decode = dataset.unbatch(), self._decode if encoded else _pixels
            pairs = (rows if encoded else rows.batch(BATCH)).map(
                lambda row: (decode(row.image), row.label), num_parallel_calls=tf.data.AUTOTUNE
            )
            for images, _ in (pairs.batch(BATCH) if encoded else pairs).prefetch(2):
                yield images

    def close(self) -> None:
        """Removes the cache and ends the session."""
        self.converted.close()


class TFRecord(Source):
    """tf.data over TFRecord files that were written before."""

    def build(self) -> Any:
        """Writes the rows to files and reads them shuffled."""
        paths = write_tfrecords(self.table, self.folder)
        return read_tfrecords(paths, self._decode, self.epochs).batch(BATCH).prefetch(2)


class DecodeLimit(Source):
    """The limit for encoded rows: TensorFlow's decoder on bytes in memory, nothing read, nothing shuffled."""

    def build(self) -> Any:
        """Loads all rows."""
        import tensorflow as tf

        rows = tf.data.Dataset.from_tensor_slices(self._images()).repeat(self.epochs)
        return rows.map(self._decode, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH).prefetch(2).map(lambda x: (x,))


class CopyLimit(Source):
    """The limit for raw rows: each image is copied once, from memory into its batch."""

    def build(self) -> Any:
        """Loads all rows."""
        import numpy as np

        return np.frombuffer(b"".join(self._images()), dtype=np.uint8).reshape(-1, SIZE, SIZE, 3)

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
    "lakelens cache": (LakelensCache, ("jpeg",)),
    "ready arrays": (ReadyArrays, ("jpeg",)),
    "petastorm": (Petastorm, STORES),
    "tfrecord": (TFRecord, STORES),
    "decode limit": (DecodeLimit, ("jpeg",)),
    "memcpy": (CopyLimit, ("raw_rgb",)),
}
# Who is compared with whom, and how many times the other's rate is the aim.
_COMPARED = (
    ("jpeg lakelens", "jpeg decode limit", 0.95),
    ("jpeg lakelens", "jpeg petastorm", None),
    ("jpeg lakelens", "jpeg tfrecord", None),
    ("jpeg lakelens cache", "jpeg lakelens", None),
    ("jpeg lakelens cache", "jpeg ready arrays", 0.8),
    ("jpeg lakelens cache", "jpeg petastorm", 2.5),
    ("raw_rgb lakelens", "raw_rgb memcpy", None),
    ("raw_rgb lakelens", "raw_rgb petastorm", 3),
    ("raw_rgb lakelens", "raw_rgb tfrecord", None),
)


def _pixels(stored: Any) -> Any:
    """Gives one image of stored pixels, or a batch of them, the shape of a batch."""
    import tensorflow as tf

    return tf.reshape(tf.io.decode_raw(stored, tf.uint8), (-1, SIZE, SIZE, 3))


def measure(contender: Contender, rows: int) -> Measure:
    """Makes the function that takes all batches once and gives the rates."""

    def once(_: int) -> dict[str, float]:
        before_s = cpu_seconds(contender.pid)
        found = contender.call("take")
        cpu_s = cpu_seconds(contender.pid) - before_s
        if found["rows"] < rows:
            raise ValueError(f"{contender.target}: {found['rows']} of {rows} rows")
        return {"images_s": found["images_s"], "images_cpu_s": rows / max(cpu_s, _TICK_S)}

    return once


def run(arguments: Any) -> Report:
    """Runs the benchmark."""
    report = Report.of("feed", arguments, "photographs", "epochs", "repeats", size=SIZE, batch=BATCH)
    with scratch(arguments.folder) as (kept, temporary):
        made = photos.photographs(kept, arguments.photographs)
        for store in arguments.stores:
            table = temporary / f"table-{store}"
            write_table(made.folder, table, SIZE, store)
            given = {"table": str(table), "store": store, "epochs": arguments.epochs}
            with ExitStack() as stack:
                measures: dict[str, Measure] = {}
                for name in arguments.contenders:
                    kind, stores = CONTENDERS[name]
                    if store in stores:
                        python = petastorm_python(kept) if name == "petastorm" else sys.executable
                        place = temporary / f"{store}-{name.replace(' ', '-')}"
                        contender = stack.enter_context(Contender(kind, place, python=python, **given))
                        contender.call("take")
                        measures[name] = measure(contender, made.count * arguments.epochs)
                report.measure(arguments.repeats, measures, _UNITS, f"{store} ")
    for ours, theirs, aim in _COMPARED:
        report.compare(ours, theirs, at_least=aim)
        report.compare(f"{ours} work", f"{theirs} work")
    return report


if __name__ == "__main__":
    flags = parser(__doc__, photographs=1000, contenders=CONTENDERS)
    flags.add_argument("--epochs", type=positive, default=3, help="epochs of one pass")
    flags.add_argument("--stores", nargs="+", choices=STORES, default=list(STORES), help="stored forms")
    command(flags, run)
