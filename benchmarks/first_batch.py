"""The first batch: seconds and memory from `table@version` to it, at 1, 10 and 100 times the rows.

    python -m benchmarks.first_batch [--rows 300] [--scales 1 10 100] [--repeats 3] [--json] [--folder KEPT]

The tables hold photographs at 299 pixels as JPEG, in files of 1,000 rows; the larger ones hold them again and again.
Measured is everything from the table's name to the first batch of 64 decoded images, in a process that has imported
TensorFlow (and, for Petastorm's converter, has its Spark session) and has done it once before. It is compared
with the limit: one row group read whole, and one batch of it decoded.

The feed mixes rows of several row groups, so whole chunks of them come before the first batch, half of `memory_bytes`
at most.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import photographs as photos
from .contender import Contender
from .harness import Report, interleave, parser, positive, scratch, tell
from .memory import PeakMemory
from .peers import petastorm_python
from .sparks import session

SIZE = 299
BATCH = 64
_FILE_ROWS = 1000
_QUALITY = 90
_FLAT = 1.5


class Source:
    """A contender that gives first batches of tables, in its own process."""

    def __init__(self, folder: str) -> None:
        import tensorflow as tf

        self.folder = Path(folder)
        self.shape = tuple(tf.zeros((BATCH, SIZE, SIZE, 3)).shape)

    def first(self, table: str) -> dict[str, Any]:
        """Takes the first batch of a table's newest version, and lets go of the rest."""
        started = time.perf_counter()
        shape = self.take(table)
        seconds = time.perf_counter() - started
        if tuple(shape) != self.shape:
            raise ValueError(f"the first batch is {tuple(shape)}, {self.shape} was expected")
        return {"seconds": seconds}

    def take(self, table: str) -> Sequence[int]:
        """Gives the shape of the first batch's images."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends what the contender holds."""


class Lakelens(Source):
    """`DeltaFeed.as_dataset`."""

    def take(self, table: str) -> Sequence[int]:
        """Resolves the version, plans, reads, decodes."""
        from lakelens import DeltaFeed

        feed = DeltaFeed(table, version=0)
        images, _, _ = next(iter(feed.as_dataset(BATCH, rank=0, size=1, dtype="uint8")))
        shape: Sequence[int] = images.shape
        return shape


class Petastorm(Source):
    """Petastorm's converter: the version copied to a cache folder by Spark, read by `make_tf_dataset`."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        from petastorm.spark import SparkDatasetConverter

        self.spark = session(self.folder)
        cache = (self.folder / "cache").as_uri()
        self.spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, cache)

    def take(self, table: str) -> Sequence[int]:
        """Copies, reads, decodes."""
        import tensorflow as tf
        from petastorm.spark import make_spark_converter

        rows = self.spark.read.format("delta").option("versionAsOf", 0).load(table).select("image", "label")
        converter = make_spark_converter(rows)
        try:
            with converter.make_tf_dataset(batch_size=BATCH, num_epochs=1) as dataset:
                decoded = (
                    dataset.unbatch()
                    .map(lambda row: tf.ensure_shape(tf.io.decode_jpeg(row.image, channels=3), (SIZE, SIZE, 3)))
                    .batch(BATCH)
                )
                shape: Sequence[int] = next(iter(decoded)).shape
                return shape
        finally:
            converter.delete()

    def close(self) -> None:
        """Ends the session."""
        self.spark.stop()


class RowGroup(Source):
    """The limit: one row group, one batch."""

    def take(self, table: str) -> Sequence[int]:
        """Reads the first row group of the first file and decodes a batch of it."""
        import pyarrow.parquet as pq
        import tensorflow as tf

        file = min(Path(table).rglob("*.parquet"))
        images = pq.ParquetFile(file).read_row_group(0, columns=["image"])["image"].to_pylist()[:BATCH]
        decoded = [tf.io.decode_jpeg(image, channels=3) for image in images]
        shape: Sequence[int] = tf.stack(decoded).shape
        return shape


CONTENDERS: dict[str, type[Source]] = {"lakelens": Lakelens, "petastorm": Petastorm, "one row group": RowGroup}


def write_table(location: Path, images: Sequence[bytes], rows: int) -> None:
    """Writes version 0 of a table of `rows` rows, which repeat the images, in files of one row group."""
    import pyarrow as pa
    from deltalake import ColumnProperties, WriterProperties, write_deltalake

    schema = pa.schema([("image", pa.binary()), ("label", pa.int32()), ("format", pa.string())])

    def batches() -> Any:
        for first in range(0, rows, _FILE_ROWS):
            numbers = range(first, min(rows, first + _FILE_ROWS))
            columns = [
                pa.array([images[number % len(images)] for number in numbers], pa.binary()),
                pa.array([number % 8 for number in numbers], pa.int32()),
                pa.array(["jpeg"] * len(numbers)),
            ]
            yield pa.record_batch(columns, schema=schema)

    properties = WriterProperties(
        compression="UNCOMPRESSED",
        max_row_group_size=_FILE_ROWS,
        default_column_properties=ColumnProperties(dictionary_enabled=False),
    )
    reader = pa.RecordBatchReader.from_batches(schema, batches())
    file_bytes = _FILE_ROWS * max(map(len, images))
    write_deltalake(str(location), reader, writer_properties=properties, target_file_size=file_bytes)


def _encoded(made: photos.Photographs, count: int) -> list[bytes]:
    from PIL import Image

    images = []
    for path in photos.files(made)[:count]:
        buffer = io.BytesIO()
        with Image.open(path) as image:
            image.convert("RGB").resize((SIZE, SIZE)).save(buffer, "JPEG", quality=_QUALITY)
        images.append(buffer.getvalue())
    return images


def measure(contender: Contender, table: Path) -> Callable[[int], dict[str, float]]:
    """Makes the function that takes the first batch once."""
    return lambda _: {"seconds": contender.call("first", table=str(table))["seconds"]}


def run(arguments: Any) -> Report:
    """Runs the benchmark."""
    scales = sorted(set(arguments.scales))
    report = Report(
        "first_batch",
        {"rows": arguments.rows, "scales": scales, "batch": BATCH, "repeats": arguments.repeats},
    )
    running: dict[str, Contender] = {}
    with scratch(arguments.folder) as (kept, temporary):
        images = _encoded(photos.photographs(kept, arguments.rows), arguments.rows)
        tables = {scale: temporary / f"table-{scale}" for scale in scales}
        for scale, table in tables.items():
            tell(f"writing {arguments.rows * scale} rows")
            write_table(table, images, arguments.rows * scale)
        try:
            for name in arguments.contenders:
                python = petastorm_python(kept) if name == "petastorm" else sys.executable
                running[name] = _start(name, temporary / name.replace(" ", "-"), python)
                running[name].call("first", table=str(tables[scales[0]]))
            for scale, table in tables.items():
                _one_scale(report, arguments.repeats, running, scale, table)
        finally:
            for contender in running.values():
                contender.close()
    _compare(report, scales)
    return report


def _start(name: str, place: Path, python: str | Path) -> Contender:
    tell(f"starting {name}")
    place.mkdir()
    target = f"benchmarks.first_batch:{CONTENDERS[name].__name__}"
    return Contender(target, place / "log", python=python, folder=str(place))


def _one_scale(report: Report, repeats: int, running: dict[str, Contender], scale: int, table: Path) -> None:
    found = interleave(repeats, {name: measure(one, table) for name, one in running.items()}, tell)
    for name, values in found.items():
        report.add(f"{name} at {scale}x", "s", values["seconds"])
        # A process that has done it before may still hold what that took.
        place = table.parent / f"{name.replace(' ', '-')}-{scale}"
        with _start(name, place, running[name].python) as fresh, PeakMemory(fresh.pid) as memory:
            fresh.call("first", table=str(table))
        report.facts[f"{name} at {scale}x memory"] = memory.as_json()


def _compare(report: Report, scales: Sequence[int]) -> None:
    smallest, largest = scales[0], scales[-1]
    for name in CONTENDERS:
        if f"{name} at {largest}x" in report.series and smallest != largest:
            aim = _FLAT if name == "lakelens" else None
            report.compare(f"{name} at {largest}x", f"{name} at {smallest}x", at_most=aim)
    for scale in scales:
        ours, theirs = f"lakelens at {scale}x", f"petastorm at {scale}x"
        if ours in report.series and theirs in report.series:
            report.compare(ours, theirs)


def main(argv: list[str] | None = None) -> int:
    """Runs the command."""
    flags = parser("Seconds and memory to the first batch, beside Petastorm's converter.", repeats=3)
    flags.add_argument("--rows", type=positive, default=300, help="rows of the smallest table")
    flags.add_argument("--scales", type=positive, nargs="+", default=[1, 10, 100], help="how many times the rows")
    flags.add_argument(
        "--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS), help="who takes part"
    )
    arguments = flags.parse_args(argv)
    run(arguments).show(arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
