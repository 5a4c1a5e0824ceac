"""Planning at 100,000 files: an ingest that finds nothing new, and a feed's plan of a version.

    python -m benchmarks.planning [--files 10000 30000 100000] [--repeats 5] [--json] [--folder KEPT]

Ingest: that many real, tiny JPEGs lie in class folders and have been ingested before, so that the table's rows are
lakelens's own. Measured is a further `ingest` that finds nothing new, beside reading every file once (what an ingest
without a memory has to do, without decoding) and beside Spark's own listing of the folder.

Feed: a Delta log that names that many files of 64 rows, written commit by commit as Delta writes it, with a checkpoint.
The data files exist and are empty (sparse, of the size that the log says). Measured is `DeltaFeed(...)`, with and
without its look for the files, beside Spark's own list of the version's files.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .contender import Contender
from .harness import Report, interleave, parser, positive, rounded, scratch, tell
from .memory import PeakMemory
from .sparks import session

_CLASSES = 10
_DISTINCT = 200
_ROWS_OF_A_FILE = 64
_FILE_BYTES = 1_600_000
_ADDS_OF_A_COMMIT = 10_000
_SCHEMA = {
    "path": "string",
    "image": "binary",
    "format": "string",
    "height": "integer",
    "width": "integer",
    "label": "integer",
    "label_name": "string",
    "split": "string",
}


def tiny_photographs(folder: Path, first: int, last: int) -> None:
    """Makes files `first` to `last`: 8 x 8 pixels, hard links to a few hundred that differ."""
    from PIL import Image

    originals = folder.parent / f"{folder.name}-originals"
    originals.mkdir(exist_ok=True)
    for number in range(_CLASSES):
        (folder / f"class-{number}").mkdir(parents=True, exist_ok=True)
    for index in range(first, last):
        original = originals / f"{index % _DISTINCT}.jpg"
        if index < _DISTINCT:
            Image.new("RGB", (8, 8), (index % 256, index // 2, 99)).save(original)
        os.link(original, folder / f"class-{index % _CLASSES}" / f"{index:06d}.jpg")


def write_log(table: Path, files: int, *, with_data: bool) -> None:
    """Writes a Delta log that adds so many files, a commit for every 10,000, and a checkpoint at its end.

    Args:
        table: The table's folder.
        files: How many.
        with_data: Whether to make the (sparse, empty) data files.
    """
    from deltalake import DeltaTable

    log = table / "_delta_log"
    log.mkdir(parents=True)
    for version, start in enumerate(range(0, files, _ADDS_OF_A_COMMIT)):
        actions = _table_actions() if version == 0 else []
        actions += [_add(number) for number in range(start, min(files, start + _ADDS_OF_A_COMMIT))]
        lines = "\n".join(json.dumps(action) for action in actions)
        (log / f"{version:020d}.json").write_text(lines + "\n", encoding="utf-8")
    DeltaTable(str(table)).create_checkpoint()
    if with_data:
        (table / "split=train").mkdir()
        for number in range(files):
            with (table / _add(number)["add"]["path"]).open("wb") as file:
                file.truncate(_FILE_BYTES)


def _table_actions() -> list[dict[str, Any]]:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in _SCHEMA.items()]
    schema = json.dumps({"type": "struct", "fields": fields})
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": ["split"],
        "configuration": {},
        "createdTime": 0,
    }
    return [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}]


def _add(number: int) -> dict[str, Any]:
    # Delta's own file names, and the statistics that lakelens has Delta collect.
    name = hashlib.md5(str(number).encode(), usedforsecurity=False).hexdigest()
    label = number % _CLASSES
    bounds = {"path": f"file:/data/{name}", "format": "jpeg", "height": 299, "width": 299, "label": label}
    statistics = {"numRecords": _ROWS_OF_A_FILE, "minValues": bounds, "maxValues": bounds, "nullCount": {"label": 0}}
    add = {
        "path": f"split=train/part-{number:05d}-{name}.c000.parquet",
        "partitionValues": {"split": "train"},
        "size": _FILE_BYTES,
        "modificationTime": 0,
        "dataChange": True,
        "stats": json.dumps(statistics),
    }
    return {"add": add}


class Ingest:
    """lakelens's ingest, Spark's listing and a plain reader, on one growing folder."""

    def __init__(self, folder: str) -> None:
        self.spark = session(Path(folder))

    def ingest(self, source: str, table: str) -> dict[str, Any]:
        """Ingests; small originals, so that most of the time goes to the files themselves."""
        from lakelens import ImageTable

        started = time.perf_counter()
        result = ImageTable(self.spark, table).ingest(source, size=8, store="original")
        return {"seconds": time.perf_counter() - started, "stored": result.stored, "skipped": result.skipped}

    def listing(self, source: str) -> dict[str, Any]:
        """Lists the folder with Spark's `binaryFile` source, without the files' content."""
        files = self.spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(source)
        started = time.perf_counter()
        count = files.select("path", "length", "modificationTime").count()
        return {"seconds": time.perf_counter() - started, "files": count}

    def close(self) -> None:
        """Ends the session."""
        self.spark.stop()


class Reader:
    """Reads and hashes every file: what an ingest without a memory does at least."""

    def read(self, source: str) -> dict[str, Any]:
        """Reads them in one thread."""
        started = time.perf_counter()
        count = 0
        for path in Path(source).rglob("*.jpg"):
            hashlib.sha256(path.read_bytes()).hexdigest()
            count += 1
        return {"seconds": time.perf_counter() - started, "files": count}


class Feed:
    """lakelens's plan of a version, in a process that has planned nothing before."""

    def plan(self, table: str, check_files: bool) -> dict[str, Any]:
        """Plans the newest version.

        Returns:
            seconds, rows, and by how much the process's peak memory grew, in MiB.
        """
        from lakelens import DeltaFeed

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.perf_counter()
        feed = DeltaFeed(table, split="train", check_files=check_files)
        seconds = time.perf_counter() - started
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        return {"seconds": seconds, "rows": feed.rows, "grown_mib": grown / 1024}


class SparkFiles:
    """Spark's own list of a version's files."""

    def __init__(self, folder: str) -> None:
        self.spark = session(Path(folder))

    def plan(self, table: str) -> dict[str, Any]:
        """Loads the version and asks for its files."""
        self.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        started = time.perf_counter()
        files = self.spark.read.format("delta").load(table).inputFiles()
        return {"seconds": time.perf_counter() - started, "files": len(files)}

    def close(self) -> None:
        """Ends the session."""
        self.spark.stop()


def run(arguments: Any) -> Report:
    """Runs the benchmark."""
    counts = sorted(arguments.files)
    report = Report("planning", {"files": counts, "repeats": arguments.repeats})
    with scratch(arguments.folder) as (_, temporary):
        if "ingest" in arguments.parts:
            _ingest(report, counts, arguments.repeats, temporary)
        if "feed" in arguments.parts:
            _feed(report, counts, arguments.repeats, temporary)
    return report


def _ingest(report: Report, counts: Sequence[int], repeats: int, temporary: Path) -> None:
    source, table = temporary / "photographs", temporary / "table"
    made = 0
    with (
        Contender("benchmarks.planning:Ingest", temporary / "ingest.log", folder=str(temporary / "ingest")) as spark,
        Contender("benchmarks.planning:Reader", temporary / "reader.log") as reader,
    ):
        for count in counts:
            tell(f"making and ingesting {count - made} files")
            tiny_photographs(source, made, count)
            found = spark.call("ingest", source=str(source), table=str(table), timeout_s=3600)
            report.facts[f"ingest of {count - made} new beside {made} known, s"] = rounded(found["seconds"], 3)
            made = count
            spark.call("ingest", source=str(source), table=str(table))
            measures = {
                "nothing new": _known(spark, source, table, count),
                "spark listing": lambda _: {"s": spark.call("listing", source=str(source))["seconds"]},
                "reading": lambda _: {"s": reader.call("read", source=str(source))["seconds"]},
            }
            for name, values in interleave(repeats, measures, tell).items():
                report.add(f"ingest {name} {count}", "s", values["s"])
            report.compare(f"ingest nothing new {count}", f"ingest reading {count}")
            report.compare(f"ingest nothing new {count}", f"ingest spark listing {count}")
            with PeakMemory(spark.pid) as memory:
                spark.call("ingest", source=str(source), table=str(table))
            report.facts[f"ingest nothing new {count} memory"] = memory.as_json()
    _growth(report, "ingest nothing new", counts)


def _known(spark: Contender, source: Path, table: Path, count: int) -> Callable[[int], dict[str, float]]:
    def once(_: int) -> dict[str, float]:
        found = spark.call("ingest", source=str(source), table=str(table))
        if found["skipped"] != count or found["stored"]:
            raise ValueError(f"{found} for {count} files that are all known")
        return {"s": found["seconds"]}

    return once


def _feed(report: Report, counts: Sequence[int], repeats: int, temporary: Path) -> None:
    with Contender("benchmarks.planning:SparkFiles", temporary / "spark.log", folder=str(temporary / "spark")) as spark:
        for count in counts:
            table = temporary / f"log-{count}"
            tell(f"writing a log of {count} files")
            write_log(table, count, with_data=True)
            spark.call("plan", table=str(table))
            grown: list[float] = []
            measures = {
                "plan": _planned(temporary, table, False, grown),
                "plan and look": _planned(temporary, table, True, []),
                "spark": lambda _, table=table: {"s": spark.call("plan", table=str(table))["seconds"]},
            }
            for name, values in interleave(repeats, measures, tell).items():
                report.add(f"feed {name} {count}", "s", values["s"])
            report.compare(f"feed plan {count}", f"feed spark {count}")
            report.facts[f"feed plan {count}, MiB"] = rounded(max(grown), 3)
    _growth(report, "feed plan", counts)


def _planned(temporary: Path, table: Path, check_files: bool, grown: list[float]) -> Callable[[int], dict[str, float]]:
    def once(_: int) -> dict[str, float]:
        with Contender("benchmarks.planning:Feed", temporary / "feed.log") as feed:
            _warm(feed, temporary)
            found = feed.call("plan", table=str(table), check_files=check_files)
        grown.append(found["grown_mib"])
        return {"s": found["seconds"]}

    return once


def _warm(feed: Contender, temporary: Path) -> None:
    """Plans a small table first: imports are no part of planning."""
    small = temporary / "log-small"
    if not small.exists():
        write_log(small, 8, with_data=True)
    feed.call("plan", table=str(small), check_files=True)


def _growth(report: Report, name: str, counts: Sequence[int]) -> None:
    small, large = counts[0], counts[-1]
    if small == large:
        return
    seconds = {count: report.series[f"{name} {count}"].median for count in (small, large)}
    per_file = (seconds[large] - seconds[small]) / (large - small)
    report.facts[f"{name}: microseconds for each further file"] = rounded(per_file * 1e6, 3)
    report.facts[f"{name}: time for {large / small:g} times the files"] = rounded(seconds[large] / seconds[small], 3)


def main(argv: list[str] | None = None) -> int:
    """Runs the command."""
    flags = parser("Planning an ingest and a feed at 100,000 files.")
    flags.add_argument("--files", type=positive, nargs="+", default=[10_000, 30_000, 100_000], help="how many files")
    flags.add_argument(
        "--parts", nargs="+", choices=("ingest", "feed"), default=["ingest", "feed"], help="what to plan"
    )
    arguments = flags.parse_args(argv)
    run(arguments).show(arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
