"""ETL at 299 pixels: lakelens's ingest beside a row UDF that stores raw bytes, Ray Data, and Pillow without Spark.

lakelens and Pillow run twice, with the sharpest filter, which is lakelens's default and what the recipe of today
scales with, and with the fastest one. Images/s is the count over the whole call; steady images/s is the rate of the
photographs beyond the first quarter, so that what a call costs once (listing, planning, the commit) is left out of it.
"""

from __future__ import annotations

import functools
import io
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from . import photographs as photos
from .contender import Contender
from .harness import Measure, Report, command, parser, scratch
from .memory import cpu_seconds
from .peers import make_peer, start_ray
from .sparks import OnSpark, stored_columns, stored_files

SIZE = 299
QUALITY = 90
SHARPEST = "lanczos"
FASTEST = "box"
WORKERS = 2
_WARM_UP, _SHARE, _SAMPLE = 4, 4, 32
_MOST_BYTES = 1.05


def pillow_row(path: str, resample: str = SHARPEST) -> bytes:
    """What a row costs at least: read a file and give its stored form."""
    return stored_form(Path(path).read_bytes(), resample)


def stored_form(data: bytes, resample: str) -> bytes:
    """Decodes, scales to fit, pads with white, encodes; nothing is checked."""
    from PIL import Image

    image = Image.open(io.BytesIO(data))
    image.draft(None, (2 * SIZE, 2 * SIZE))
    image = image.convert("RGB")
    scale = SIZE / max(image.size)
    scaled = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    image = image.resize(scaled, Image.Resampling[resample.upper()], reducing_gap=3.0)
    canvas = Image.new("RGB", (SIZE, SIZE), (255, 255, 255))
    canvas.paste(image, ((SIZE - scaled[0]) // 2, (SIZE - scaled[1]) // 2))
    buffer = io.BytesIO()
    canvas.save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()


class Pool:
    """The limit: a process pool that does the same work on the same files, without Spark and without a table."""

    def __init__(self, folder: str, resample: str) -> None:
        self.resample = resample
        self._pool = multiprocessing.get_context("fork").Pool(WORKERS)
        self._pool.map(_import_pillow, range(WORKERS))

    def ingest(self, source: str, table: str) -> dict[str, Any]:
        """Processes a folder; the stored form returns to the parent, as rows would go to a writer."""
        started = time.perf_counter()
        paths = sorted(str(path) for path in Path(source).rglob("*.jpg"))
        work = functools.partial(pillow_row, resample=self.resample)
        stored = sum(len(row) for row in self._pool.imap_unordered(work, paths, chunksize=16))
        return {"seconds": time.perf_counter() - started, "rows": len(paths), "stored_bytes": stored}

    def close(self) -> None:
        """Ends the pool."""
        self._pool.terminate()


class RayData:
    """Ray Data: the limit's work on each file, written as Parquet."""

    def __init__(self, folder: str, resample: str) -> None:
        self.resample = resample
        start_ray(WORKERS)

    def ingest(self, source: str, table: str) -> dict[str, Any]:
        """Ingests a folder into a new folder of Parquet files."""
        import pyarrow.dataset as ds
        import ray

        started = time.perf_counter()
        files = ray.data.read_binary_files(source, include_paths=True, file_extensions=["jpg"])
        files.map(_stored_by(self.resample)).write_parquet(table)
        seconds = time.perf_counter() - started
        stored = sum(file.stat().st_size for file in Path(table).glob("*.parquet"))
        return {"seconds": seconds, "rows": ds.dataset(table, format="parquet").count_rows(), "stored_bytes": stored}


def _stored_by(resample: str) -> Any:
    """A function of Ray's rows, which travels by value."""
    return lambda row: {"path": row["path"], "image": stored_form(row["bytes"], resample)}


class Recipe(OnSpark):
    """What is done today: a Python UDF for each row, the pixels stored as they are."""

    def __init__(self, folder: str, resample: str) -> None:
        super().__init__(folder)
        self.resample = resample

    def ingest(self, source: str, table: str) -> dict[str, Any]:
        """Ingests a folder into a new table, and returns what the table then holds."""
        started = time.perf_counter()
        self.write(source, table)
        seconds = time.perf_counter() - started
        rows, size = stored_files(table)
        return {"seconds": seconds, "rows": rows, "stored_bytes": size}

    def write(self, source: str, table: str) -> None:
        """Reads files as rows, converts each by a UDF, appends to Delta."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import BinaryType

        def convert(content: bytes) -> bytes:
            from PIL import Image

            image = Image.open(io.BytesIO(content)).convert("RGB")
            image.thumbnail((SIZE, SIZE), Image.Resampling.LANCZOS)
            canvas = Image.new("RGB", (SIZE, SIZE), (255, 255, 255))
            canvas.paste(image, ((SIZE - image.width) // 2, (SIZE - image.height) // 2))
            return canvas.tobytes()

        rows = (
            self.spark.read.format("binaryFile")
            .option("recursiveFileLookup", "true")
            .option("pathGlobFilter", "*.jpg")
            .load(source)
            .select(
                "path",
                F.udf(convert, BinaryType())("content").alias("image"),
                (F.regexp_extract("path", r"/(\d+)\.[^/]*/[^/]*$", 1).cast("int") - 1).alias("label"),
            )
        )
        rows.write.format("delta").save(table)


class Lakelens(Recipe):
    """lakelens: `ImageTable.ingest`."""

    def write(self, source: str, table: str) -> None:
        """Ingests with what the limit does to an image."""
        from lakelens import ImageTable

        images = ImageTable(self.spark, table)
        images.ingest(source, layout="class_folders", size=SIZE, store="jpeg", resample=self.resample)


CONTENDERS: Mapping[str, tuple[type[Any], str]] = {
    "lakelens": (Lakelens, SHARPEST),
    f"lakelens {FASTEST}": (Lakelens, FASTEST),
    "recipe": (Recipe, SHARPEST),
    "ray data": (RayData, SHARPEST),
    "pool": (Pool, SHARPEST),
    f"pool {FASTEST}": (Pool, FASTEST),
}
# Who is compared with whom, and how many times the other's steady rate is the aim.
_COMPARED = (
    ("lakelens", "pool", 0.9),
    (f"lakelens {FASTEST}", f"pool {FASTEST}", 0.9),
    ("lakelens", "recipe", 5),
    (f"lakelens {FASTEST}", "recipe", 5),
    ("lakelens", "ray data", None),
)
_UNITS = {
    "images_s": ("", "images/s"),
    "steady_images_s": (" steady", "images/s"),
    "images_cpu_s": (" steady work", "images/processor second"),
}


def _import_pillow(_: int) -> None:
    from PIL import Image

    Image.init()


def measure(contender: Contender, whole: photos.Photographs, part: photos.Photographs, tables: Path) -> Measure:
    """Makes the function that ingests the part and the whole once and gives both rates."""

    def ingest(source: photos.Photographs, table: Path) -> tuple[float, float]:
        before_s = cpu_seconds(contender.pid)
        found = contender.call("ingest", source=str(source.folder), table=str(table))
        if found["rows"] != source.count:
            raise ValueError(f"{contender.target}: {found['rows']} rows of {source.count} photographs")
        return found["seconds"], cpu_seconds(contender.pid) - before_s

    def once(repeat: int) -> dict[str, float]:
        table = tables / f"table-{repeat}"
        part_s, part_cpu_s = ingest(part, table / "part")
        whole_s, whole_cpu_s = ingest(whole, table / "whole")
        shutil.rmtree(table, ignore_errors=True)
        beyond = whole.count - part.count
        return {
            "images_s": whole.count / whole_s,
            "steady_images_s": beyond / max(whole_s - part_s, 1e-6),
            "images_cpu_s": beyond / max(whole_cpu_s - part_cpu_s, 1e-6),
        }

    return once


def run(arguments: Any) -> Report:
    """Runs the benchmark."""
    report = Report.of("etl", arguments, "photographs", "repeats", size=SIZE, cores=WORKERS)
    with scratch(arguments.folder) as (kept, temporary), ExitStack() as stack:
        whole = photos.photographs(kept, arguments.photographs)
        part = photos.subset(whole, max(1, whole.count // _SHARE), temporary / "part")
        running: dict[str, Contender] = {}
        for name in arguments.contenders:
            kind, resample = CONTENDERS[name]
            python = make_peer("scoring", kept) if name == "ray data" else sys.executable
            one = Contender(kind, temporary / name.replace(" ", "-"), python=python, resample=resample)
            running[name] = stack.enter_context(one)
            for number in range(_WARM_UP):  # Java compiles code during the first calls
                one.call("ingest", source=str(part.folder), table=str(temporary / "warmed" / name / str(number)))
        measures = {name: measure(one, whole, part, temporary / name) for name, one in running.items()}
        report.measure(arguments.repeats, measures, _UNITS)
        for ours, theirs, aim in _COMPARED:
            report.compare(ours, theirs)
            report.compare(f"{ours} steady", f"{theirs} steady", at_least=aim)
            report.compare(f"{ours} steady work", f"{theirs} steady work")
        report.per_core(f"{name} steady" for name in running)
        if "lakelens" in running:
            _compare_bytes(report, running["lakelens"], whole, temporary / "stored")
    return report


def _compare_bytes(report: Report, lakelens: Contender, whole: photos.Photographs, table: Path) -> None:
    """Compares what a table takes with its sources and its images, and images with the limit's, byte by byte."""
    stored = lakelens.call("ingest", source=str(whole.folder), table=str(table))["stored_bytes"]
    paths, images = stored_columns(table, "path", "image")
    same = sum(
        image == pillow_row(urlsplit(path).path) for path, image in zip(paths[:_SAMPLE], images[:_SAMPLE], strict=True)
    )
    report.facts["images equal to the pool's"] = f"{same} of {len(paths[:_SAMPLE])}"
    source = sum(path.stat().st_size for path in whole.files)
    report.aim("stored bytes / source JPEGs", stored / source, at_most=_MOST_BYTES)
    report.aim("stored bytes / stored JPEGs", stored / sum(map(len, images)), at_most=_MOST_BYTES)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    command(parser(__doc__, photographs=2000, contenders=CONTENDERS), run)
