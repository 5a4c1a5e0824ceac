"""ETL at 299 pixels: lakelens's ingest beside a row UDF that stores raw bytes, and beside Pillow without Spark.

    python -m benchmarks.etl [--photographs 2000] [--repeats 5] [--json] [--folder KEPT]

lakelens and Pillow run twice, with the sharpest filter, which is lakelens's default and what the recipe of today
scales with, and with the fastest one. Each contender turns the same photographs into rows, in a process that is already
warm. Images/s is the count over the whole call; steady images/s is the rate of the photographs beyond the first
quarter, so that what a call costs once (listing, planning, the commit) is left out of it. Images per processor second
is what to look at when the machine is shared with others.
"""

from __future__ import annotations

import functools
import io
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import photographs as photos
from .contender import Contender
from .harness import Aim, Report, interleave, parser, positive, rounded, scratch, tell
from .memory import PeakMemory, cpu_seconds

SIZE = 299
QUALITY = 90
SHARPEST = "lanczos"
FASTEST = "box"
WORKERS = 2
_WARM_UP = 64


def pillow_row(path: str, resample: str = SHARPEST) -> bytes:
    """What a row costs at least: decode, scale to fit, pad with white, encode; nothing is checked."""
    from PIL import Image

    data = Path(path).read_bytes()
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

    resample = SHARPEST

    def __init__(self, folder: str) -> None:
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


class SparkContender:
    """What the two Spark contenders share: the session and the count of tasks."""

    def __init__(self, folder: str) -> None:
        from .sparks import session

        self.spark = session(Path(folder), f"local[{WORKERS}]")

    def ingest(self, source: str, table: str) -> dict[str, Any]:
        """Ingests a folder into a new table, and returns what the table then holds."""
        from .sparks import stored_files, tasks_so_far

        before = tasks_so_far(self.spark)
        started = time.perf_counter()
        self.write(source, table)
        seconds = time.perf_counter() - started
        files, rows, size = stored_files(table)
        tasks = tasks_so_far(self.spark) - before
        return {"seconds": seconds, "rows": rows, "files": files, "stored_bytes": size, "tasks": tasks}

    def write(self, source: str, table: str) -> None:
        """Ingests a folder into a new table."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends the session."""
        self.spark.stop()


class Recipe(SparkContender):
    """What is done today: a Python UDF for each row, the pixels stored as they are."""

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


class Lakelens(SparkContender):
    """lakelens: `ImageTable.ingest`."""

    resample = SHARPEST

    def write(self, source: str, table: str) -> None:
        """Ingests with what the limit does to an image."""
        from lakelens import ImageTable

        images = ImageTable(self.spark, table)
        images.ingest(source, layout="class_folders", size=SIZE, store="jpeg", resample=self.resample)

    def sample(self, table: str, source: str) -> dict[str, Any]:
        """Compares some stored images with the limit's, byte by byte; sums what the rows hold."""
        from pyspark.sql import functions as F

        rows = self.spark.read.format("delta").load(table)
        some = rows.select("path", "image").limit(32).collect()
        same = sum(bytes(row.image) == pillow_row(_local(row.path), self.resample) for row in some)
        held = rows.agg(F.sum(F.length("image")), F.sum("source_length"), F.count("*")).first()
        batch = self.spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
        return {
            "compared": len(some),
            "same_bytes": same,
            "image_bytes": int(held[0]),
            "source_bytes": int(held[1]),
            "rows": int(held[2]),
            "arrow_max_records_per_batch": int(batch),
        }


class FastestPool(Pool):
    """The limit with the fastest filter."""

    resample = FASTEST


class FastestLakelens(Lakelens):
    """lakelens with the fastest filter."""

    resample = FASTEST


CONTENDERS: Mapping[str, type[Any]] = {
    "lakelens": Lakelens,
    f"lakelens {FASTEST}": FastestLakelens,
    "recipe": Recipe,
    "pool": Pool,
    f"pool {FASTEST}": FastestPool,
}
# Who is compared with whom, and how many times the other's steady rate is the aim.
_COMPARED = (
    ("lakelens", "pool", 0.9),
    (f"lakelens {FASTEST}", f"pool {FASTEST}", 0.9),
    ("lakelens", "recipe", 5),
    (f"lakelens {FASTEST}", "recipe", 5),
)


def _local(uri: str) -> str:
    from urllib.parse import unquote, urlsplit

    return unquote(urlsplit(uri).path)


def _import_pillow(_: int) -> None:
    from PIL import Image

    Image.init()


def measure(
    contender: Contender, whole: photos.Photographs, part: photos.Photographs, tables: Path
) -> Callable[[int], dict[str, float]]:
    """Makes the function that ingests the part and the whole once and gives both rates."""

    def once(repeat: int) -> dict[str, float]:
        table = tables / f"table-{repeat}"
        start_s = cpu_seconds(contender.pid)
        little = contender.call("ingest", source=str(part.folder), table=str(table / "part"))
        middle_s = cpu_seconds(contender.pid)
        much = contender.call("ingest", source=str(whole.folder), table=str(table / "whole"))
        beyond_cpu_s = max(cpu_seconds(contender.pid) - middle_s - (middle_s - start_s), 1e-6)
        shutil.rmtree(table, ignore_errors=True)
        for found, expected in ((little, part), (much, whole)):
            if found["rows"] != expected.count:
                raise ValueError(f"{contender.target}: {found['rows']} rows of {expected.count} photographs")
        beyond_s = max(much["seconds"] - little["seconds"], 1e-6)
        return {
            "images_s": whole.count / much["seconds"],
            "steady_images_s": (whole.count - part.count) / beyond_s,
            "images_cpu_s": (whole.count - part.count) / beyond_cpu_s,
        }

    return once


def peaks(contender: Contender, whole: photos.Photographs, part: photos.Photographs, tables: Path) -> dict[str, Any]:
    """Ingests the part and the whole once more with an eye on memory; nothing is timed."""
    result: dict[str, Any] = {}
    for name, source in (("part", part), ("whole", whole)):
        with PeakMemory(contender.pid) as memory:
            found = contender.call("ingest", source=str(source.folder), table=str(tables / "peak" / name))
        result[name] = {"photographs": source.count, **memory.as_json()}
        result["tasks"] = found.get("tasks", 0)
        result["files"] = found.get("files", 0)
        result["stored_bytes"] = found["stored_bytes"]
    return result


def run(arguments: Any) -> Report:
    """Runs the benchmark."""
    report = Report(
        "etl", {"photographs": arguments.photographs, "size": SIZE, "cores": WORKERS, "repeats": arguments.repeats}
    )
    with scratch(arguments.folder) as (kept, temporary):
        whole = photos.photographs(kept, arguments.photographs)
        part = photos.subset(whole, max(1, whole.count // 4), temporary / "part")
        warm = photos.subset(whole, min(_WARM_UP, whole.count), temporary / "warm")
        running: dict[str, Contender] = {}
        try:
            for name in arguments.contenders:
                place = temporary / name
                place.mkdir()
                tell(f"starting {name}")
                contender = Contender(f"benchmarks.etl:{CONTENDERS[name].__name__}", place / "log", folder=str(place))
                running[name] = contender
                contender.call("ingest", source=str(warm.folder), table=str(place / "warm"))
            found = interleave(
                arguments.repeats,
                {name: measure(c, whole, part, temporary / name) for name, c in running.items()},
                tell,
            )
            memory = {name: peaks(c, whole, part, temporary / name) for name, c in running.items()}
            sample = {}
            if "lakelens" in running:
                table = str(temporary / "lakelens" / "peak" / "whole")
                sample = running["lakelens"].call("sample", table=table, source=str(whole.folder))
        finally:
            for contender in running.values():
                contender.close()
    _fill(report, found, memory, sample, whole)
    return report


def _fill(
    report: Report,
    found: Mapping[str, Any],
    memory: Mapping[str, Any],
    sample: Mapping[str, Any],
    whole: photos.Photographs,
) -> None:
    for name, values in found.items():
        report.add(f"{name}", "images/s", values["images_s"])
        report.add(f"{name} steady", "images/s", values["steady_images_s"])
        report.add(f"{name} steady work", "images/processor second", values["images_cpu_s"])
    for ours, theirs, aim in _COMPARED:
        if {ours, theirs} <= set(found):
            report.compare(ours, theirs)
            report.compare(f"{ours} steady", f"{theirs} steady", at_least=aim)
            report.compare(f"{ours} steady work", f"{theirs} steady work")
    report.facts["memory"] = {
        name: {key: value for key, value in found.items() if key in ("part", "whole")} for name, found in memory.items()
    }
    report.facts["tasks"] = {name: found["tasks"] for name, found in memory.items()}
    report.facts["files"] = {name: found["files"] for name, found in memory.items()}
    report.facts["stored bytes per image"] = {
        name: round(found["stored_bytes"] / whole.count) for name, found in memory.items()
    }
    report.facts["source bytes per image"] = round(whole.bytes / whole.count)
    if sample:
        report.facts["images equal to the pool's"] = f"{sample['same_bytes']} of {sample['compared']}"
        report.facts["arrow"] = {"max_records_per_batch": sample["arrow_max_records_per_batch"]}
        stored = memory["lakelens"]["stored_bytes"]
        report.aims.append(Aim("stored bytes / source JPEGs", stored / whole.bytes, at_most=1.05))
        report.aims.append(Aim("stored bytes / stored JPEGs", stored / sample["image_bytes"], at_most=1.05))
        worker = "python worker_mib"
        small, large = memory["lakelens"]["part"].get(worker), memory["lakelens"]["whole"].get(worker)
        if small and large:
            report.facts["worker memory, whole over part"] = rounded(large / small, 3)


def main(argv: list[str] | None = None) -> int:
    """Runs the command."""
    flags = parser("ETL beside a row UDF and a process pool.")
    flags.add_argument("--photographs", type=positive, default=2000, help="how many photographs")
    flags.add_argument(
        "--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS), help="who takes part"
    )
    arguments = flags.parse_args(argv)
    run(arguments).show(arguments.json)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
