"""Seconds and memory from `table@version` to the first batch, at 1, 10 and 100 times the rows.

The tables hold photographs at 299 pixels as JPEG, in files of one row group; the larger ones hold them again and again.
Measured is everything from the table's name to the first batch of 64 decoded images, in a process that has imported
TensorFlow (and, for Petastorm's converter, has its Spark session) and has done it once before. It is compared
with the limit: one row group read whole, and one batch of it decoded.

The feed mixes rows of several row groups, so whole chunks of them come before the first batch, half of `memory_bytes`
at most.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from . import photographs as photos
from .contender import Contender
from .harness import Measure, Report, command, parser, positive, scratch, tell
from .memory import PeakMemory
from .peers import petastorm_python
from .tensorflow_rows import Converted, decode_jpeg

SIZE = 299
BATCH = 64
_FLAT = 1.5


class Source:
    """A contender that gives first batches of tables, in its own process."""

    def __init__(self, folder: str) -> None:
        import tensorflow as tf

        tf.zeros(1)

    def first(self, table: str) -> dict[str, Any]:
        """Takes the first batch of a table's newest version, and lets go of the rest."""
        started = time.perf_counter()
        shape = tuple(self.take(table).shape)
        seconds = time.perf_counter() - started
        if shape != (BATCH, SIZE, SIZE, 3):
            raise ValueError(f"the first batch is {shape}, {(BATCH, SIZE, SIZE, 3)} was expected")
        return {"seconds": seconds}

    def take(self, table: str) -> Any:
        """Gives the first batch's images."""
        raise NotImplementedError


class Lakelens(Source):
    """`DeltaFeed.as_dataset`."""

    def take(self, table: str) -> Any:
        """Resolves the version, plans, reads, decodes."""
        from lakelens import DeltaFeed

        feed = DeltaFeed(table, version=0)
        return next(iter(feed.as_dataset(BATCH, rank=0, size=1, dtype="uint8")))[0]


class Petastorm(Source):
    """Petastorm's converter: the version copied to a cache folder by Spark, read by `make_tf_dataset`."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.converted = Converted(folder)

    def take(self, table: str) -> Any:
        """Copies, reads, decodes."""
        try:
            converter = self.converted.convert(table)
            with converter.make_tf_dataset(batch_size=BATCH, num_epochs=1) as dataset:
                return next(iter(dataset.unbatch().map(lambda row: decode_jpeg(row.image, SIZE)).batch(BATCH)))
        finally:
            self.converted.forget()

    def close(self) -> None:
        """Ends the session."""
        self.converted.close()


class RowGroup(Source):
    """The limit: one row group, one batch."""

    def take(self, table: str) -> Any:
        """Reads the first row group of the first file and decodes a batch of it."""
        import pyarrow.parquet as pq
        import tensorflow as tf

        file = min(Path(table).rglob("*.parquet"))
        images = pq.ParquetFile(file).read_row_group(0, columns=["image"])["image"].to_pylist()[:BATCH]
        return tf.stack([tf.io.decode_jpeg(image, channels=3) for image in images])


CONTENDERS: dict[str, type[Source]] = {"lakelens": Lakelens, "petastorm": Petastorm, "one row group": RowGroup}


def write_table(location: Path, images: Sequence[bytes], rows: int, file_rows: int) -> None:
    """Writes version 0 of a table of `rows` rows, which repeat the images, in files of one row group."""
    import pyarrow as pa
    from deltalake import ColumnProperties, WriterProperties, write_deltalake

    schema = pa.schema([("image", pa.binary()), ("label", pa.int32()), ("format", pa.string())])

    def batches() -> Iterator[Any]:
        for first in range(0, rows, file_rows):
            numbers = range(first, min(rows, first + file_rows))
            columns = [
                pa.array([images[number % len(images)] for number in numbers], pa.binary()),
                pa.array([number % 8 for number in numbers], pa.int32()),
                pa.array(["jpeg"] * len(numbers)),
            ]
            yield pa.record_batch(columns, schema=schema)

    properties = WriterProperties(
        compression="UNCOMPRESSED",
        max_row_group_size=file_rows,
        default_column_properties=ColumnProperties(dictionary_enabled=False),
    )
    reader = pa.RecordBatchReader.from_batches(schema, batches())
    file_bytes = file_rows * max(map(len, images))
    write_deltalake(str(location), reader, writer_properties=properties, target_file_size=file_bytes)


def run(arguments: Any) -> Report:
    """Runs the benchmark."""
    scales = sorted(set(arguments.scales))
    report = Report.of("first_batch", arguments, "rows", "file_rows", "repeats", scales=scales, batch=BATCH)
    with scratch(arguments.folder) as (kept, temporary), ExitStack() as stack:
        made = photos.scaled(photos.photographs(kept, arguments.rows), temporary / "jpegs", SIZE)
        images = [path.read_bytes() for path in made.files]
        tables = {scale: temporary / f"table-{scale}" for scale in scales}
        for scale, table in tables.items():
            tell(f"writing {arguments.rows * scale} rows")
            write_table(table, images, arguments.rows * scale, arguments.file_rows)
        running: dict[str, Contender] = {}
        for name in arguments.contenders:
            python = petastorm_python(kept) if name == "petastorm" else sys.executable
            place = temporary / name.replace(" ", "-")
            running[name] = stack.enter_context(Contender(CONTENDERS[name], place, python=python))
            running[name].call("first", table=str(tables[scales[0]]))
        for scale, table in tables.items():
            _one_scale(report, arguments.repeats, running, scale, table)
    smallest, largest = scales[0], scales[-1]
    if smallest != largest:
        for name in CONTENDERS:
            at_most = _FLAT if name == "lakelens" else None
            report.compare(f"{name} at {largest}x", f"{name} at {smallest}x", at_most=at_most)
    for scale in scales:
        report.compare(f"lakelens at {scale}x", f"petastorm at {scale}x")
    return report


def _one_scale(report: Report, repeats: int, running: dict[str, Contender], scale: int, table: Path) -> None:
    def measure(contender: Contender) -> Measure:
        return lambda _: {"s": contender.call("first", table=str(table))["seconds"]}

    measures = {name: measure(contender) for name, contender in running.items()}
    report.measure(repeats, measures, {"s": (f" at {scale}x", "s")})
    for name, contender in running.items():
        # A process that has done it before may still hold what that took.
        place = table.parent / f"{name.replace(' ', '-')}-{scale}"
        with Contender(CONTENDERS[name], place, python=contender.python) as fresh, PeakMemory(fresh.pid) as memory:
            fresh.call("first", table=str(table))
        report.facts[f"{name} at {scale}x memory"] = memory.as_json()


if __name__ == "__main__":
    flags = parser(__doc__, repeats=3, contenders=CONTENDERS)
    flags.add_argument("--rows", type=positive, default=300, help="rows of the smallest table")
    flags.add_argument("--file-rows", type=positive, default=1000, help="rows of a file, which is one row group")
    flags.add_argument("--scales", type=positive, nargs="+", default=[1, 10, 100], help="how many times the rows")
    command(flags, run)
